! ranks: 1 2 4
!
! Every chapter of the interface once, from Fortran. Checks itself: the status is 0 only if all
! checks held.
!
! Compile after include/fortran/gaspi_types.f90, gaspi.f90 and gaspi_ext.f90.
module checks
  use, intrinsic :: iso_c_binding
  use gaspi
  use gaspi_ext
  use, intrinsic :: iso_fortran_env, only: error_unit
  implicit none

  integer(gaspi_timeout_t), parameter :: limit = 60000_gaspi_timeout_t
  integer(gaspi_rank_t) :: my_rank = 0, ranks = 0
  integer(gaspi_group_t), parameter :: all_ranks = GASPI_GROUP_ALL
  integer(gaspi_segment_id_t), parameter :: seg = 0

contains

  ! Ends the process if the condition does not hold.
  subroutine check(condition, what)
    logical, intent(in) :: condition
    character(*), intent(in) :: what
    character(kind=c_char), target :: detail(512)
    character(len=512) :: text
    integer(gaspi_return_t) :: code
    integer :: at

    if (condition) return
    code = gaspi_error_detail(c_loc(detail), 512_gaspi_size_t)
    text = ''
    do at = 1, 512
      if (code /= GASPI_SUCCESS .or. detail(at) == c_null_char) exit
      text(at:at) = detail(at)
    end do
    write (error_unit, '(a,i0,a,i0,4a)') 'chapters.f90: rank ', my_rank, ' of ', ranks, &
        ': not true: ', what, '; last error: ', trim(text)
    stop 1
  end subroutine check

  ! The call succeeded.
  subroutine ok(code, what)
    integer(gaspi_return_t), intent(in) :: code
    character(*), intent(in) :: what
    call check(code == GASPI_SUCCESS, what)
  end subroutine ok

  function rank_after(distance) result(rank)
    integer, intent(in) :: distance
    integer(gaspi_rank_t) :: rank
    rank = int(modulo(int(my_rank) + distance, int(ranks)), gaspi_rank_t)
  end function rank_after

  subroutine barrier()
    call ok(gaspi_barrier(all_ranks, limit), 'barrier')
  end subroutine barrier

  ! Waits for a notification, takes it and returns its value.
  function take(id) result(value)
    integer, intent(in) :: id
    integer(gaspi_notification_t) :: value
    integer(gaspi_notification_id_t) :: first
    call ok(gaspi_notify_waitsome(seg, id, 1, first, limit), 'notify_waitsome')
    call check(first == id, 'first is the id')
    call ok(gaspi_notify_reset(seg, id, value), 'notify_reset')
  end function take

  ! The text at a C pointer.
  function text_at(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: bytes(:)
    integer :: at
    text = ''
    call check(c_associated(pointer), 'a text')
    call c_f_pointer(pointer, bytes, [256])
    do at = 1, 256
      if (bytes(at) == c_null_char) exit
      text = text // bytes(at)
    end do
  end function text_at

  ! An operation of gaspi_allreduce_user: the product of 8-byte integers.
  function product_of(one, two, result, state, num, element_size, timeout) bind(C) result(code)
    type(c_ptr), value :: one, two, result, state
    integer(gaspi_number_t), value :: num
    integer(gaspi_size_t), value :: element_size
    integer(gaspi_timeout_t), value :: timeout
    integer(gaspi_return_t) :: code
    integer(c_long), pointer :: a(:), b(:), c(:)
    integer(c_int), pointer :: calls

    code = GASPI_ERROR
    if (element_size /= 8 .or. timeout == 0) return
    call c_f_pointer(one, a, [num])
    call c_f_pointer(two, b, [num])
    call c_f_pointer(result, c, [num])
    c = a * b
    call c_f_pointer(state, calls)
    calls = calls + 1
    code = GASPI_SUCCESS
  end function product_of
end module checks

module chapters_of_gaspi
  use, intrinsic :: iso_c_binding
  use checks
  implicit none

contains

  subroutine configuration()
    type(gaspi_config_t) :: config, again
    ! save: the compiler does not see that the address lives on in the configuration.
    integer(c_int), target, save :: mine
    real(c_float) :: version

    call check(storage_size(config) == 8 * 144, 'the configuration has 144 bytes')
    call ok(gaspi_config_get(config), 'config_get')
    call check(config%logger == 1 .and. config%sn_port == 12121, 'first fields')
    call check(config%sn_timeout == 30000, 'sn_timeout')
    call check(config%dev_config%params%ib%netdev_id == -1, 'netdev_id')
    call check(config%dev_config%params%tcp%port == 19000, 'tcp port')
    call check(config%transfer_size_max == 2_c_long**30, 'transfer_size_max')
    call check(config%rw_list_elem_max == 255, 'rw_list_elem_max')
    call check(config%build_infrastructure == GASPI_TOPOLOGY_STATIC, 'build_infrastructure')
    call check(.not. c_associated(config%user_defined), 'user_defined')
    config%queue_num = 5
    config%allreduce_elem_max = 1000
    config%user_defined = c_loc(mine)
    call ok(gaspi_config_set(config), 'config_set')
    call ok(gaspi_config_get(again), 'config_get again')
    call check(again%queue_num == 5 .and. again%allreduce_elem_max == 1000, 'values set')
    call check(c_associated(again%user_defined, c_loc(mine)), 'user_defined set')
    config%queue_num = 17
    call check(gaspi_config_set(config) == GASPI_ERR_CONFIG, 'queue_num 17 is refused')
    call ok(gaspi_version(version), 'version')
    call check(abs(version - 1.6) < 0.001, 'version 1.6')
  end subroutine configuration

  subroutine process()
    integer(gaspi_state_t), allocatable, target :: states(:)
    integer(gaspi_rank_t) :: local_rank, local_num, rank
    integer(gaspi_number_t) :: number
    integer(gaspi_network_t) :: network

    call check(my_rank >= 0 .and. my_rank < ranks, 'rank')
    call check(gaspi_proc_init(limit) == GASPI_ERR_INITED, 'second init')
    call ok(gaspi_initialized(number), 'initialized')
    call check(number == 1, 'is initialized')
    call ok(gaspi_proc_local_rank(local_rank), 'local_rank')
    call ok(gaspi_proc_local_num(local_num), 'local_num')
    call check(local_rank < local_num .and. local_num <= ranks, 'local ranks')
    do rank = 0, ranks - 1_gaspi_rank_t
      call ok(gaspi_connect(rank, limit), 'connect')
      call ok(gaspi_proc_ping(rank, limit), 'ping')
    end do
    call check(gaspi_connect(ranks, limit) == GASPI_ERR_INV_RANK, 'connect to nobody')
    allocate (states(0:ranks))
    states = -7
    call ok(gaspi_state_vec_get(c_loc(states)), 'state_vec_get')
    call check(all(states(0:ranks - 1) == GASPI_STATE_HEALTHY), 'healthy')
    call check(states(ranks) == -7, 'no more than the vector')
    call ok(gaspi_build_infrastructure(number), 'build_infrastructure')
    call check(number == GASPI_TOPOLOGY_STATIC, 'static')
    call ok(gaspi_network_type(network), 'network_type')
    call check(network >= GASPI_IB .and. network <= GASPI_OFI, 'a network')
  end subroutine process

  subroutine groups()
    integer(gaspi_group_t) :: group
    integer(gaspi_rank_t), allocatable, target :: members(:)
    integer(gaspi_rank_t) :: rank
    integer(gaspi_number_t) :: number

    call ok(gaspi_group_create(group), 'group_create')
    do rank = ranks - 1_gaspi_rank_t, 0, -1
      call ok(gaspi_group_add(group, rank), 'group_add')
    end do
    call check(gaspi_group_add(group, 0_gaspi_rank_t) == GASPI_ERR_INV_RANK, 'added twice')
    call ok(gaspi_group_commit(group, limit), 'group_commit')
    call ok(gaspi_group_size(group, number), 'group_size')
    call check(number == ranks, 'members')
    allocate (members(number))
    call ok(gaspi_group_ranks(group, c_loc(members)), 'group_ranks')
    do rank = 1, ranks
      call check(members(rank) == rank - 1, 'sorted members')
    end do
    call ok(gaspi_barrier(group, limit), 'barrier of a group')
    call ok(gaspi_group_num(number), 'group_num')
    call check(number == 2, 'two groups')
    call ok(gaspi_group_delete(group), 'group_delete')
    call ok(gaspi_group_max(number), 'group_max')
    call check(number == 32, 'group_max is 32')
  end subroutine groups

  subroutine segments(memory)
    integer(c_long), pointer, intent(out) :: memory(:)
    integer(gaspi_segment_id_t), target :: ids(2)
    integer(gaspi_segment_id_t) :: free_id
    integer(c_long), allocatable, target, save :: own(:)
    integer(gaspi_number_t) :: number
    integer(gaspi_size_t) :: bytes
    type(c_ptr) :: address

    call ok(gaspi_segment_create(seg, 65536_gaspi_size_t, all_ranks, limit, &
        GASPI_MEM_INITIALIZED), 'segment_create')
    call ok(gaspi_segment_ptr(seg, address), 'segment_ptr')
    call c_f_pointer(address, memory, [8192])
    call check(all(memory == 0), 'zeroed')
    allocate (own(100))
    call ok(gaspi_segment_bind(5_gaspi_segment_id_t, c_loc(own), 800_gaspi_size_t, 0), 'bind')
    call ok(gaspi_segment_register(5_gaspi_segment_id_t, rank_after(1), limit), 'register')
    call ok(gaspi_segment_num(number), 'segment_num')
    call check(number == 2, 'two segments')
    call ok(gaspi_segment_list(2, c_loc(ids)), 'segment_list')
    call check(all(ids == [0_gaspi_segment_id_t, 5_gaspi_segment_id_t]), 'ids')
    call ok(gaspi_segment_avail_local(free_id), 'segment_avail_local')
    call check(free_id == 1, 'lowest free id')
    call ok(gaspi_segment_size(seg, rank_after(1), bytes), 'segment_size')
    call check(bytes == 65536, 'size')
    call barrier()
    call ok(gaspi_segment_delete(5_gaspi_segment_id_t), 'segment_delete')
    call check(gaspi_segment_alloc(5_gaspi_segment_id_t, 0_gaspi_size_t, GASPI_ALLOC_DEFAULT) &
        == GASPI_ERR_INV_SEGSIZE, 'size 0')
    call ok(gaspi_segment_max(number), 'segment_max')
    call check(number == 255, 'segment_max is 255')
  end subroutine segments

  subroutine one_sided(memory)
    integer(c_long), pointer, intent(in) :: memory(:)
    integer(gaspi_rank_t) :: right, left
    integer(gaspi_segment_id_t), target :: here(2), there(2)
    integer(gaspi_offset_t), target :: from(2), to(2)
    integer(gaspi_size_t), target :: sizes(2)
    integer(gaspi_queue_id_t) :: queue
    integer(gaspi_number_t) :: number

    right = rank_after(1)
    left = rank_after(-1)
    memory(1:100) = 1000 + my_rank
    call barrier()
    call ok(gaspi_write(seg, 0_c_long, right, seg, 8000_c_long, 800_c_long, 1_c_signed_char, &
        limit), 'write')
    call ok(gaspi_notify(seg, right, 3, 17, 1_c_signed_char, limit), 'notify')
    call check(take(3) == 17, 'value of the notification')
    call check(all(memory(1001:1100) == 1000 + left), 'data of the left rank')
    call ok(gaspi_queue_size(1_c_signed_char, number), 'queue_size')
    call check(number == 2, 'two requests')
    call ok(gaspi_wait(1_c_signed_char, limit), 'wait')
    call ok(gaspi_read_notify(seg, 16000_c_long, right, seg, 0_c_long, 800_c_long, 4, &
        0_c_signed_char, limit), 'read_notify')
    call check(take(4) == 1, 'a read notifies with 1')
    call check(all(memory(2001:2100) == 1000 + right), 'data of the right rank')
    here = seg
    there = seg
    from = [0, 400]
    to = [24000, 32000]
    sizes = [8, 16]
    call ok(gaspi_write_list_notify(2, c_loc(here), c_loc(from), right, c_loc(there), c_loc(to), &
        c_loc(sizes), seg, 5, 9, 0_c_signed_char, limit), 'write_list_notify')
    call check(take(5) == 9, 'value behind a list')
    call check(memory(3001) == 1000 + left .and. all(memory(4001:4002) == 1000 + left), 'list')
    call ok(gaspi_wait(0_c_signed_char, limit), 'wait')
    call check(gaspi_write(seg, 65536_c_long, right, seg, 0_c_long, 1_c_long, 0_c_signed_char, &
        limit) == GASPI_ERR_INV_LOC_OFF, 'offset behind the end')
    call ok(gaspi_queue_num(number), 'queue_num')
    call check(number == 5, 'five queues')
    call ok(gaspi_queue_create(queue, limit), 'queue_create')
    call check(queue == 5, 'the sixth queue')
    call ok(gaspi_queue_delete(queue), 'queue_delete')
    call barrier()
  end subroutine one_sided

  subroutine atomics(memory)
    integer(c_long), pointer, intent(in) :: memory(:)
    integer(gaspi_atomic_value_t) :: old
    integer :: at

    do at = 1, 100
      call ok(gaspi_atomic_fetch_add(seg, 48000_c_long, 0_gaspi_rank_t, 2_c_long, old, limit), &
          'fetch_add')
    end do
    call barrier()
    if (my_rank == 0) call check(memory(6001) == 200 * ranks, 'sum')
    call barrier()
    call ok(gaspi_atomic_compare_swap(seg, 48008_c_long, my_rank, 0_c_long, 5_c_long, old, limit), &
        'compare_swap')
    call check(old == 0 .and. memory(6002) == 5, 'swapped')
    call check(gaspi_atomic_fetch_add(seg, 4_c_long, my_rank, 1_c_long, old, limit) == &
        GASPI_ERR_UNALIGN_OFF, 'unaligned')
    call barrier()
  end subroutine atomics

  subroutine passive(memory)
    integer(c_long), pointer, intent(in) :: memory(:)
    integer(gaspi_rank_t) :: from
    integer :: left

    if (my_rank /= 0) then
      memory(7000) = 77 * my_rank
      call ok(gaspi_passive_send(seg, 55992_c_long, 0_gaspi_rank_t, 8_c_long, limit), 'send')
    else
      do left = ranks - 1, 1, -1
        call ok(gaspi_passive_receive(seg, 56000_c_long, from, 8_c_long, limit), 'receive')
        call check(from > 0 .and. memory(7001) == 77 * from, 'message')
      end do
      call check(gaspi_passive_receive(seg, 56000_c_long, from, 8_c_long, GASPI_TEST) == &
          GASPI_TIMEOUT, 'no more messages')
    end if
    call barrier()
  end subroutine passive

  subroutine collectives()
    real(c_double), target :: in(1000), out(1000)
    integer(c_int), target :: small, largest
    integer(c_long), target :: factors(3), products(3)
    integer(c_int), target :: calls
    integer :: rank
    integer(c_long) :: expected

    in = my_rank + 0.5d0
    call ok(gaspi_allreduce(c_loc(in), c_loc(out), 1000, GASPI_OP_SUM, GASPI_TYPE_DOUBLE, &
        all_ranks, limit), 'allreduce')
    call check(all(abs(out - ranks * (ranks - 1) / 2.0d0 - ranks * 0.5d0) < 1.0d-9), 'sum')
    small = -int(my_rank)
    call ok(gaspi_allreduce(c_loc(small), c_loc(largest), 1, GASPI_OP_MIN, GASPI_TYPE_INT, &
        all_ranks, limit), 'allreduce of integers')
    call check(largest == 1 - ranks, 'minimum')
    factors = my_rank + [2, 3, 4]
    calls = 0
    call ok(gaspi_allreduce_user(c_loc(factors), c_loc(products), 3, 8_c_long, &
        c_funloc(product_of), c_loc(calls), all_ranks, limit), 'allreduce_user')
    expected = 1
    do rank = 0, ranks - 1
      expected = expected * (rank + 3)
    end do
    call check(products(2) == expected, 'product')
    call check(gaspi_barrier(77_gaspi_group_t, limit) == GASPI_ERR_INV_GROUP, 'no such group')
  end subroutine collectives

  subroutine environment()
    type(c_ptr) :: text, name, description
    integer(gaspi_cycles_t) :: ticks
    real(gaspi_time_t) :: time
    real(gaspi_float) :: mhz
    integer(gaspi_number_t) :: number, level
    integer(gaspi_statistic_argument_t) :: argument
    integer(c_long) :: value
    integer(gaspi_size_t) :: bytes

    call check(text_at(gaspi_error_str(GASPI_QUEUE_FULL)) == 'Queue is full', 'error_str')
    call ok(gaspi_print_error(GASPI_TIMEOUT, text), 'print_error')
    call check(text_at(text) == 'timeout', 'text of print_error')
    call ok(gaspi_time_get(time), 'time_get')
    call check(time >= 0, 'time')
    call ok(gaspi_time_ticks(ticks), 'time_ticks')
    call ok(gaspi_cpu_frequency(mhz), 'cpu_frequency')
    call check(mhz > 1, 'frequency')
    call ok(gaspi_transfer_size_max(bytes), 'transfer_size_max')
    call check(bytes == 2_c_long**30, 'transfer_size_max is 2^30')
    call ok(gaspi_rw_list_elem_max(number), 'rw_list_elem_max')
    call ok(gaspi_statistic_counter_max(number), 'statistic_counter_max')
    call check(number >= 18, 'at least 18 counters')
    call ok(gaspi_statistic_counter_info(2, argument, name, description, level), 'counter_info')
    call check(text_at(name) == 'NumberOfBarriers', 'name of a counter')
    call ok(gaspi_statistic_counter_reset(2), 'counter_reset')
    call ok(gaspi_statistic_verbosity_level(level), 'verbosity_level')
    call barrier()
    call ok(gaspi_statistic_counter_get(2, 0, value), 'counter_get')
    call check(value == 1, 'one barrier')
    call ok(gaspi_pcontrol(c_null_ptr), 'pcontrol')
    call gaspi_printf('from Fortran' // c_new_line // c_null_char)
  end subroutine environment
end module chapters_of_gaspi

program chapters
  use chapters_of_gaspi
  implicit none
  integer(c_long), pointer :: memory(:)

  call check(gaspi_proc_rank(my_rank) == GASPI_ERR_NOINIT, 'before init')
  call configuration()
  call ok(gaspi_proc_init(limit), 'proc_init')
  call ok(gaspi_proc_rank(my_rank), 'proc_rank')
  call ok(gaspi_proc_num(ranks), 'proc_num')
  call process()
  call groups()
  call segments(memory)
  call one_sided(memory)
  call atomics(memory)
  call passive(memory)
  call collectives()
  call environment()
  call barrier()
  call ok(gaspi_proc_term(limit), 'proc_term')
end program chapters
