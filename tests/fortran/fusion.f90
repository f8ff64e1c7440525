! ranks: 1 2 3
!
! Fused buffers and the broadcast of a list from Fortran: tensors copied, in their places and lent,
! contributions that travel in 16 bits, ends of buckets that a function is told of. Checks itself:
! the status is 0 only if all checks held.
!
! Compile after include/fortran/gaspi_types.f90, gaspi.f90, gaspi_ext.f90 and gaspi_collectives.f90.
module ends
  use, intrinsic :: iso_c_binding
  use gaspi_collectives
  use gaspi_types
  implicit none

contains

  ! Counts the buckets that have ended well, by bucket. Each is told of by one thread at a time.
  subroutine count_end(fusion, bucket, outcome, state) bind(C)
    integer(gaspi_fusion_t), value :: fusion
    integer(gaspi_size_t), value :: bucket
    integer(gaspi_return_t), value :: outcome
    type(c_ptr), value :: state
    integer(c_int), pointer :: counts(:)
    call c_f_pointer(state, counts, [2])
    if (fusion /= 0 .and. outcome == GASPI_SUCCESS) counts(bucket + 1) = counts(bucket + 1) + 1
  end subroutine count_end
end module ends

program fusion
  use, intrinsic :: iso_c_binding
  use ends
  use gaspi
  use gaspi_collectives
  use gaspi_ext
  use, intrinsic :: iso_fortran_env, only: error_unit
  implicit none

  integer, parameter :: weights = 5000, biases = 70, steps = 6
  integer(gaspi_timeout_t), parameter :: limit = 60000_gaspi_timeout_t
  integer(gaspi_group_t), parameter :: all_ranks = GASPI_GROUP_ALL
  integer(gaspi_rank_t) :: my_rank = 0, ranks = 0
  integer :: step, at, ranks_sum
  type(gaspi_fusion_tensor_t), target :: tensors(2)
  type(gaspi_fusion_options_t), target :: options
  integer(gaspi_fusion_t) :: buffer
  real(c_float), target :: weight(weights), bias(biases), sum(weights)

  call ok(gaspi_proc_init(limit), 'proc_init')
  call ok(gaspi_proc_rank(my_rank), 'proc_rank')
  call ok(gaspi_proc_num(ranks), 'proc_num')
  ranks_sum = int(ranks) * (int(ranks) + 1) / 2
  weight = [(real((int(my_rank) + 1) * modulo(at, 8), c_float), at = 1, weights)]
  bias = real(my_rank + 1, c_float)
  tensors(1)%count = weights
  tensors(2)%count = biases
  options%threshold = 0
  options%order = GASPI_FUSION_REVERSE
  call steps_of_a_program()
  call contributions_in_16_bits()
  call pieces_of_rank_0()
  call ok(gaspi_proc_term(limit), 'proc_term')

contains

  ! Each way to hand a tensor over and to get its sum.
  subroutine steps_of_a_program()
    integer(gaspi_size_t) :: buckets, bucket
    integer(gaspi_int) :: done
    integer(c_int) :: descriptor
    integer(c_int), target, volatile :: told(2)
    type(c_ptr) :: place, lent
    real(c_float), pointer :: there(:)

    call ok(gaspi_fusion_create(c_loc(tensors), 2_gaspi_size_t, all_ranks, c_loc(options), buffer, &
        limit), 'create')
    call ok(gaspi_fusion_buckets(buffer, buckets), 'buckets')
    call check(buckets == 2, 'a bucket for each tensor')
    call ok(gaspi_fusion_bucket(buffer, 1_gaspi_size_t, bucket), 'bucket')
    call check(bucket == 0, 'the last tensor comes first')
    call ok(gaspi_fusion_fd(buffer, descriptor), 'fd')
    call check(descriptor >= 0, 'a descriptor')
    told = 0
    call ok(gaspi_fusion_on_end(buffer, c_funloc(count_end), c_loc(told)), 'on_end')
    do step = 1, steps
      call ok(gaspi_fusion_tensor_ptr(buffer, 1_gaspi_size_t, place), 'tensor_ptr')
      call c_f_pointer(place, there, [biases])
      there = bias * step
      call ok(gaspi_fusion_submit(buffer, 1_gaspi_size_t, place, 1.0_c_double), 'in its place')
      call ok(gaspi_fusion_submit(buffer, 0_gaspi_size_t, c_loc(weight), real(step, c_double)), &
          'submit')
      do at = 1, 2
        call ok(gaspi_fusion_next(buffer, bucket, limit), 'next')
        call check(bucket < 2, 'one of them')
      end do
      sum = 0
      call ok(gaspi_fusion_wait(buffer, 0_gaspi_size_t, c_loc(sum), limit), 'wait')
      call check(all(nint(sum) == [(step * ranks_sum * modulo(at, 8), at = 1, weights)]), 'weights')
      call ok(gaspi_fusion_test(buffer, 0_gaspi_size_t, c_null_ptr, done), 'test')
      call check(done == 1, 'it has ended')
      call ok(gaspi_fusion_result(buffer, 1_gaspi_size_t, lent, limit), 'result')
      call c_f_pointer(lent, there, [biases])
      call check(all(nint(there) == step * ranks_sum), 'biases')
      call ok(gaspi_fusion_release(buffer, 1_gaspi_size_t, lent), 'release')
      call check(gaspi_fusion_release(buffer, 1_gaspi_size_t, lent) == GASPI_ERR_INV_NUM, &
          'released twice')
    end do
    call check(gaspi_fusion_wait(buffer, 0_gaspi_size_t, place, limit) == GASPI_ERR_INV_SIZE, &
        'the place of another tensor')
    ! Other threads may still be telling the function.
    do while (any(told < steps))
      call ok(gaspi_fusion_test(buffer, 0_gaspi_size_t, c_null_ptr, done), 'test')
    end do
    call ok(gaspi_fusion_on_end(buffer, c_null_funptr, c_null_ptr), 'no function')
    call check(all(told == steps), 'each end is told once')
    call ok(gaspi_fusion_free(buffer), 'free')
    call check(gaspi_fusion_free(buffer) == GASPI_ERROR, 'free twice')
  end subroutine steps_of_a_program

  ! Added up in 16 bits they would come to a halt at 256.
  subroutine contributions_in_16_bits()
    integer, parameter :: contributions = 300

    options%contributions = contributions
    options%wire = GASPI_COLL_TYPE_BF16
    call ok(gaspi_fusion_create(c_loc(tensors(2)), 1_gaspi_size_t, all_ranks, c_loc(options), &
        buffer, limit), 'create with a wire')
    bias = 1
    do at = 1, contributions
      call ok(gaspi_fusion_submit(buffer, 0_gaspi_size_t, c_loc(bias), 1.0_c_double), &
          'a contribution')
    end do
    call ok(gaspi_fusion_wait(buffer, 0_gaspi_size_t, c_loc(bias), limit), 'wait for a wire')
    call check(all(abs(bias / real(contributions * int(ranks)) - 1) < ranks / 256.0), &
        'contributions')
    call ok(gaspi_fusion_free(buffer), 'free with a wire')
  end subroutine contributions_in_16_bits

  ! Pieces of several types, in one call and as a request.
  subroutine pieces_of_rank_0()
    real(c_double), target :: numbers(300)
    integer(c_int64_t), target :: words(20000)
    type(gaspi_coll_piece_t) :: pieces(2)
    integer(gaspi_coll_request_t) :: requests(1)

    pieces(1)%data = c_loc(numbers)
    pieces(1)%count = size(numbers)
    pieces(1)%datatype = GASPI_COLL_TYPE_F64
    pieces(2)%data = c_loc(words)
    pieces(2)%count = size(words)
    pieces(2)%datatype = GASPI_COLL_TYPE_I64
    do step = 1, 2
      numbers = my_rank + step
      words = my_rank * 7 + step
      if (step == 1) then
        call ok(gaspi_coll_broadcast_list(pieces, 2_gaspi_size_t, 0_gaspi_rank_t, all_ranks, &
            c_null_ptr, limit), 'broadcast_list')
      else
        call ok(gaspi_coll_broadcast_list_start(pieces, 2_gaspi_size_t, 0_gaspi_rank_t, all_ranks, &
            c_null_ptr, requests(1), limit), 'broadcast_list_start')
        call ok(gaspi_coll_wait_all(1_gaspi_size_t, requests, limit), 'wait_all')
      end if
      call check(all(nint(numbers) == step), 'numbers of rank 0')
      call check(all(words == step), 'words of rank 0')
    end do
  end subroutine pieces_of_rank_0

  ! Ends the process if the condition does not hold.
  subroutine check(condition, what)
    logical, intent(in) :: condition
    character(*), intent(in) :: what
    character(kind=c_char), target :: detail(512)
    character(len=512) :: text
    integer(gaspi_return_t) :: code
    integer :: i

    if (condition) return
    code = gaspi_error_detail(c_loc(detail), 512_gaspi_size_t)
    text = ''
    do i = 1, 512
      if (code /= GASPI_SUCCESS .or. detail(i) == c_null_char) exit
      text(i:i) = detail(i)
    end do
    write (error_unit, '(a,i0,a,i0,4a)') 'fusion.f90: rank ', my_rank, ' of ', ranks, &
        ': not true: ', what, '; last error: ', trim(text)
    stop 1
  end subroutine check

  ! The call succeeded.
  subroutine ok(code, what)
    integer(gaspi_return_t), intent(in) :: code
    character(*), intent(in) :: what
    call check(code == GASPI_SUCCESS, what)
  end subroutine ok
end program fusion
