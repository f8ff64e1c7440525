! ranks: 1 2 3
!
! The collective operations of gaspi_collectives.h from Fortran: each form, options, a reduction of
! the program. Checks itself: the status is 0 only if all checks held.
!
! Compile after include/fortran/gaspi_types.f90, gaspi.f90, gaspi_ext.f90 and gaspi_collectives.f90.
module reductions
  use, intrinsic :: iso_c_binding
  use gaspi_types
  implicit none

contains

  ! Adds elements of two numbers.
  function add_pairs(left, right, sums, num, element_size, state) bind(C) result(code)
    type(c_ptr), value :: left, right, sums, state
    integer(c_int64_t), value :: num
    integer(gaspi_size_t), value :: element_size
    integer(gaspi_return_t) :: code
    real(c_double), pointer :: one(:), two(:), both(:)
    code = GASPI_ERROR
    if (element_size /= 16 .or. c_associated(state)) return
    call c_f_pointer(left, one, [2 * num])
    call c_f_pointer(right, two, [2 * num])
    call c_f_pointer(sums, both, [2 * num])
    both = one + two
    code = GASPI_SUCCESS
  end function add_pairs
end module reductions

program collectives
  use, intrinsic :: iso_c_binding
  use gaspi
  use gaspi_collectives
  use gaspi_ext
  use reductions
  use, intrinsic :: iso_fortran_env, only: error_unit
  implicit none

  integer, parameter :: many = 1000
  integer(gaspi_timeout_t), parameter :: limit = 60000_gaspi_timeout_t
  integer(gaspi_group_t), parameter :: all_ranks = GASPI_GROUP_ALL
  integer(gaspi_rank_t) :: my_rank = 0, ranks = 0
  integer :: at, total
  real(c_double), target :: mine(many), sum(many)
  type(gaspi_coll_options_t), target :: options
  integer(gaspi_coll_request_t) :: requests(2)
  integer(gaspi_coll_op_t) :: op
  integer(gaspi_int) :: done
  character(kind=c_char), target :: ring(5) = ['r', 'i', 'n', 'g', c_null_char]

  call ok(gaspi_proc_init(limit), 'proc_init')
  call ok(gaspi_proc_rank(my_rank), 'proc_rank')
  call ok(gaspi_proc_num(ranks), 'proc_num')
  total = int(ranks) * (int(ranks) + 1) / 2
  mine = [(real((int(my_rank) + 1) * at, c_double), at = 1, many)]

  sum = 0
  call ok(gaspi_coll_allreduce(c_loc(mine), c_loc(sum), int(many, gaspi_coll_count_t), &
      GASPI_COLL_TYPE_F64, GASPI_COLL_OP_SUM, all_ranks, c_null_ptr, limit), 'allreduce')
  call check(all(int(sum) == [(total * at, at = 1, many)]), 'sum of all ranks')

  ! In place, by an algorithm of the program's choice.
  options%algorithm = c_loc(ring)
  sum = mine
  call ok(gaspi_coll_allreduce(GASPI_COLL_IN_PLACE, c_loc(sum), int(many, gaspi_coll_count_t), &
      GASPI_COLL_TYPE_F64, GASPI_COLL_OP_SUM, all_ranks, c_loc(options), limit), 'ring')
  call check(all(int(sum) == [(total * at, at = 1, many)]), 'sum in place')

  ! With the same bits in each run.
  options%algorithm = c_null_ptr
  options%mode = GASPI_COLL_MODE_STABLE
  sum = 0
  call ok(gaspi_coll_allreduce(c_loc(mine), c_loc(sum), int(many, gaspi_coll_count_t), &
      GASPI_COLL_TYPE_F64, GASPI_COLL_OP_SUM, all_ranks, c_loc(options), limit), 'stable')
  call check(all(int(sum) == [(total * at, at = 1, many)]), 'sum in the stable mode')

  ! Started and prepared, waited for together.
  call ok(gaspi_coll_broadcast_start(c_loc(mine), c_loc(sum), int(many, gaspi_coll_count_t), &
      GASPI_COLL_TYPE_F64, 0_gaspi_rank_t, all_ranks, c_null_ptr, requests(1), limit), &
      'broadcast_start')
  call ok(gaspi_coll_barrier_init(all_ranks, c_null_ptr, requests(2), limit), 'barrier_init')
  call ok(gaspi_coll_start(requests(2)), 'start')
  call ok(gaspi_coll_wait_all(2_gaspi_size_t, requests, limit), 'wait_all')
  call check(requests(1) == GASPI_COLL_REQUEST_NULL, 'the one that was started is gone')
  call check(all(int(sum) == [(at, at = 1, many)]), 'elements of rank 0')
  call ok(gaspi_coll_test(requests(2), done), 'test')
  call check(done == 1, 'the barrier has ended')
  call ok(gaspi_coll_free(requests(2)), 'free')
  call check(gaspi_coll_free(requests(2)) == GASPI_ERROR, 'free twice')

  ! Pairs of numbers, added by this program.
  call ok(gaspi_coll_op_create(c_funloc(add_pairs), c_null_ptr, 16_gaspi_size_t, 0_gaspi_uint, &
      op), &
      'op_create')
  sum = 0
  call ok(gaspi_coll_allreduce(c_loc(mine), c_loc(sum), int(many / 2, gaspi_coll_count_t), &
      GASPI_COLL_TYPE_USER, op, all_ranks, c_null_ptr, limit), 'allreduce of pairs')
  call check(all(int(sum) == [(total * at, at = 1, many)]), 'sum of pairs')
  call ok(gaspi_coll_op_free(op), 'op_free')

  call ok(gaspi_coll_barrier(all_ranks, c_null_ptr, limit), 'barrier')
  call ok(gaspi_proc_term(limit), 'proc_term')

contains

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
    write (error_unit, '(a,i0,a,i0,4a)') 'collectives.f90: rank ', my_rank, ' of ', ranks, &
        ': not true: ', what, '; last error: ', trim(text)
    stop 1
  end subroutine check

  ! The call succeeded.
  subroutine ok(code, what)
    integer(gaspi_return_t), intent(in) :: code
    character(*), intent(in) :: what
    call check(code == GASPI_SUCCESS, what)
  end subroutine ok
end program collectives
