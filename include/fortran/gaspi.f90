! gaspi.f90: the procedures of GASPI.h for Fortran. Interfaces only; what each procedure does is
! said in GASPI.h.
!
! Scalars that go in are passed by value, scalars that come out by reference. Arrays and buffers are
! addresses: c_loc of a variable with the target attribute. gaspi_segment_ptr gives a type(c_ptr),
! which c_f_pointer turns into an array.
!
! SPDX-License-Identifier: MIT OR Apache-2.0
module gaspi
  use gaspi_types
  implicit none
  public

  interface
    ! Configuration and process management

    function gaspi_config_get(config) bind(C) result(code)
      import
      type(gaspi_config_t), intent(out) :: config
      integer(gaspi_return_t) :: code
    end function gaspi_config_get

    function gaspi_config_set(config) bind(C) result(code)
      import
      type(gaspi_config_t), value :: config
      integer(gaspi_return_t) :: code
    end function gaspi_config_set

    function gaspi_version(version) bind(C) result(code)
      import
      real(c_float), intent(out) :: version
      integer(gaspi_return_t) :: code
    end function gaspi_version

    function gaspi_proc_init(timeout) bind(C) result(code)
      import
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_proc_init

    function gaspi_proc_term(timeout) bind(C) result(code)
      import
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_proc_term

    function gaspi_proc_rank(rank) bind(C) result(code)
      import
      integer(gaspi_rank_t), intent(out) :: rank
      integer(gaspi_return_t) :: code
    end function gaspi_proc_rank

    function gaspi_proc_num(proc_num) bind(C) result(code)
      import
      integer(gaspi_rank_t), intent(out) :: proc_num
      integer(gaspi_return_t) :: code
    end function gaspi_proc_num

    function gaspi_proc_kill(rank, timeout) bind(C) result(code)
      import
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_proc_kill

    function gaspi_connect(rank, timeout) bind(C) result(code)
      import
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_connect

    function gaspi_disconnect(rank, timeout) bind(C) result(code)
      import
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_disconnect

    function gaspi_state_vec_get(state_vector) bind(C) result(code)
      import
      type(c_ptr), value :: state_vector
      integer(gaspi_return_t) :: code
    end function gaspi_state_vec_get

    function gaspi_build_infrastructure(build_infrastructure) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: build_infrastructure
      integer(gaspi_return_t) :: code
    end function gaspi_build_infrastructure

    ! Groups

    function gaspi_group_create(group) bind(C) result(code)
      import
      integer(gaspi_group_t), intent(out) :: group
      integer(gaspi_return_t) :: code
    end function gaspi_group_create

    function gaspi_group_delete(group) bind(C) result(code)
      import
      integer(gaspi_group_t), value :: group
      integer(gaspi_return_t) :: code
    end function gaspi_group_delete

    function gaspi_group_add(group, rank) bind(C) result(code)
      import
      integer(gaspi_group_t), value :: group
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_return_t) :: code
    end function gaspi_group_add

    function gaspi_group_commit(group, timeout) bind(C) result(code)
      import
      integer(gaspi_group_t), value :: group
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_group_commit

    function gaspi_group_num(group_num) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: group_num
      integer(gaspi_return_t) :: code
    end function gaspi_group_num

    function gaspi_group_size(group, group_size) bind(C) result(code)
      import
      integer(gaspi_group_t), value :: group
      integer(gaspi_number_t), intent(out) :: group_size
      integer(gaspi_return_t) :: code
    end function gaspi_group_size

    function gaspi_group_ranks(group, group_ranks) bind(C) result(code)
      import
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: group_ranks
      integer(gaspi_return_t) :: code
    end function gaspi_group_ranks

    function gaspi_group_max(group_max) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: group_max
      integer(gaspi_return_t) :: code
    end function gaspi_group_max

    ! Segments

    function gaspi_segment_alloc(segment_id, size, alloc_policy) bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id
      integer(gaspi_size_t), value :: size
      integer(gaspi_alloc_t), value :: alloc_policy
      integer(gaspi_return_t) :: code
    end function gaspi_segment_alloc

    function gaspi_segment_delete(segment_id) bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id
      integer(gaspi_return_t) :: code
    end function gaspi_segment_delete

    function gaspi_segment_register(segment_id, rank, timeout) bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_segment_register

    function gaspi_segment_create(segment_id, size, group, timeout, alloc_policy) &
        bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id
      integer(gaspi_size_t), value :: size
      integer(gaspi_group_t), value :: group
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_alloc_t), value :: alloc_policy
      integer(gaspi_return_t) :: code
    end function gaspi_segment_create

    function gaspi_segment_bind(segment_id, pointer, size, memory_description) &
        bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id
      type(c_ptr), value :: pointer
      integer(gaspi_size_t), value :: size
      integer(gaspi_memory_description_t), value :: memory_description
      integer(gaspi_return_t) :: code
    end function gaspi_segment_bind

    function gaspi_segment_use(segment_id, pointer, size, group, timeout, memory_description) &
        bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id
      type(c_ptr), value :: pointer
      integer(gaspi_size_t), value :: size
      integer(gaspi_group_t), value :: group
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_memory_description_t), value :: memory_description
      integer(gaspi_return_t) :: code
    end function gaspi_segment_use

    function gaspi_segment_num(segment_num) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: segment_num
      integer(gaspi_return_t) :: code
    end function gaspi_segment_num

    function gaspi_segment_list(num, segment_id_list) bind(C) result(code)
      import
      integer(gaspi_number_t), value :: num
      type(c_ptr), value :: segment_id_list
      integer(gaspi_return_t) :: code
    end function gaspi_segment_list

    function gaspi_segment_ptr(segment_id, pointer) bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id
      type(c_ptr), intent(out) :: pointer
      integer(gaspi_return_t) :: code
    end function gaspi_segment_ptr

    function gaspi_segment_max(segment_max) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: segment_max
      integer(gaspi_return_t) :: code
    end function gaspi_segment_max

    ! One-sided communication

    function gaspi_write(segment_id_local, offset_local, rank, segment_id_remote, &
        offset_remote, size, queue, timeout) bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id_local
      integer(gaspi_offset_t), value :: offset_local
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_segment_id_t), value :: segment_id_remote
      integer(gaspi_offset_t), value :: offset_remote
      integer(gaspi_size_t), value :: size
      integer(gaspi_queue_id_t), value :: queue
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_write

    function gaspi_read(segment_id_local, offset_local, rank, segment_id_remote, offset_remote, &
        size, queue, timeout) bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id_local
      integer(gaspi_offset_t), value :: offset_local
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_segment_id_t), value :: segment_id_remote
      integer(gaspi_offset_t), value :: offset_remote
      integer(gaspi_size_t), value :: size
      integer(gaspi_queue_id_t), value :: queue
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_read

    function gaspi_write_list(num, segment_id_local, offset_local, rank, segment_id_remote, &
        offset_remote, size, queue, timeout) bind(C) result(code)
      import
      integer(gaspi_number_t), value :: num
      type(c_ptr), value :: segment_id_local
      type(c_ptr), value :: offset_local
      integer(gaspi_rank_t), value :: rank
      type(c_ptr), value :: segment_id_remote
      type(c_ptr), value :: offset_remote
      type(c_ptr), value :: size
      integer(gaspi_queue_id_t), value :: queue
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_write_list

    function gaspi_read_list(num, segment_id_local, offset_local, rank, segment_id_remote, &
        offset_remote, size, queue, timeout) bind(C) result(code)
      import
      integer(gaspi_number_t), value :: num
      type(c_ptr), value :: segment_id_local
      type(c_ptr), value :: offset_local
      integer(gaspi_rank_t), value :: rank
      type(c_ptr), value :: segment_id_remote
      type(c_ptr), value :: offset_remote
      type(c_ptr), value :: size
      integer(gaspi_queue_id_t), value :: queue
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_read_list

    function gaspi_wait(queue, timeout) bind(C) result(code)
      import
      integer(gaspi_queue_id_t), value :: queue
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_wait

    function gaspi_notify(segment_id_remote, rank, notification_id, notification_value, queue, &
        timeout) bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id_remote
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_notification_id_t), value :: notification_id
      integer(gaspi_notification_t), value :: notification_value
      integer(gaspi_queue_id_t), value :: queue
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_notify

    function gaspi_notify_waitsome(segment_id_local, notification_begin, notification_num, &
        first_id, timeout) bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id_local
      integer(gaspi_notification_id_t), value :: notification_begin
      integer(gaspi_number_t), value :: notification_num
      integer(gaspi_notification_id_t), intent(out) :: first_id
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_notify_waitsome

    function gaspi_notify_reset(segment_id_local, notification_id, old_notification_val) &
        bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id_local
      integer(gaspi_notification_id_t), value :: notification_id
      integer(gaspi_notification_t), intent(out) :: old_notification_val
      integer(gaspi_return_t) :: code
    end function gaspi_notify_reset

    function gaspi_write_notify(segment_id_local, offset_local, rank, segment_id_remote, &
        offset_remote, size, notification_id, notification_value, queue, timeout) &
        bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id_local
      integer(gaspi_offset_t), value :: offset_local
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_segment_id_t), value :: segment_id_remote
      integer(gaspi_offset_t), value :: offset_remote
      integer(gaspi_size_t), value :: size
      integer(gaspi_notification_id_t), value :: notification_id
      integer(gaspi_notification_t), value :: notification_value
      integer(gaspi_queue_id_t), value :: queue
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_write_notify

    function gaspi_read_notify(segment_id_local, offset_local, rank, segment_id_remote, &
        offset_remote, size, notification_id, queue, timeout) bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id_local
      integer(gaspi_offset_t), value :: offset_local
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_segment_id_t), value :: segment_id_remote
      integer(gaspi_offset_t), value :: offset_remote
      integer(gaspi_size_t), value :: size
      integer(gaspi_notification_id_t), value :: notification_id
      integer(gaspi_queue_id_t), value :: queue
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_read_notify

    function gaspi_write_list_notify(num, segment_id_local, offset_local, rank, &
        segment_id_remote, offset_remote, size, segment_id_notification, notification_id, &
        notification_value, queue, timeout) bind(C) result(code)
      import
      integer(gaspi_number_t), value :: num
      type(c_ptr), value :: segment_id_local
      type(c_ptr), value :: offset_local
      integer(gaspi_rank_t), value :: rank
      type(c_ptr), value :: segment_id_remote
      type(c_ptr), value :: offset_remote
      type(c_ptr), value :: size
      integer(gaspi_segment_id_t), value :: segment_id_notification
      integer(gaspi_notification_id_t), value :: notification_id
      integer(gaspi_notification_t), value :: notification_value
      integer(gaspi_queue_id_t), value :: queue
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_write_list_notify

    function gaspi_read_list_notify(num, segment_id_local, offset_local, rank, &
        segment_id_remote, offset_remote, size, segment_id_notification, notification_id, &
        queue, timeout) bind(C) result(code)
      import
      integer(gaspi_number_t), value :: num
      type(c_ptr), value :: segment_id_local
      type(c_ptr), value :: offset_local
      integer(gaspi_rank_t), value :: rank
      type(c_ptr), value :: segment_id_remote
      type(c_ptr), value :: offset_remote
      type(c_ptr), value :: size
      integer(gaspi_segment_id_t), value :: segment_id_notification
      integer(gaspi_notification_id_t), value :: notification_id
      integer(gaspi_queue_id_t), value :: queue
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_read_list_notify

    ! Queues

    function gaspi_queue_create(queue, timeout) bind(C) result(code)
      import
      integer(gaspi_queue_id_t), intent(out) :: queue
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_queue_create

    function gaspi_queue_delete(queue) bind(C) result(code)
      import
      integer(gaspi_queue_id_t), value :: queue
      integer(gaspi_return_t) :: code
    end function gaspi_queue_delete

    function gaspi_queue_size(queue, queue_size) bind(C) result(code)
      import
      integer(gaspi_queue_id_t), value :: queue
      integer(gaspi_number_t), intent(out) :: queue_size
      integer(gaspi_return_t) :: code
    end function gaspi_queue_size

    function gaspi_queue_num(queue_num) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: queue_num
      integer(gaspi_return_t) :: code
    end function gaspi_queue_num

    function gaspi_queue_size_max(queue_size_max) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: queue_size_max
      integer(gaspi_return_t) :: code
    end function gaspi_queue_size_max

    function gaspi_queue_max(queue_max) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: queue_max
      integer(gaspi_return_t) :: code
    end function gaspi_queue_max

    function gaspi_queue_purge(queue, timeout) bind(C) result(code)
      import
      integer(gaspi_queue_id_t), value :: queue
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_queue_purge

    ! Passive communication

    function gaspi_passive_send(segment_id_local, offset_local, rank, size, timeout) &
        bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id_local
      integer(gaspi_offset_t), value :: offset_local
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_size_t), value :: size
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_passive_send

    function gaspi_passive_receive(segment_id_local, offset_local, rank, size, timeout) &
        bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id_local
      integer(gaspi_offset_t), value :: offset_local
      integer(gaspi_rank_t), intent(out) :: rank
      integer(gaspi_size_t), value :: size
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_passive_receive

    function gaspi_passive_queue_purge(timeout) bind(C) result(code)
      import
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_passive_queue_purge

    ! Global atomics

    function gaspi_atomic_fetch_add(segment_id, offset, rank, value_add, value_old, timeout) &
        bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id
      integer(gaspi_offset_t), value :: offset
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_atomic_value_t), value :: value_add
      integer(gaspi_atomic_value_t), intent(out) :: value_old
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_atomic_fetch_add

    function gaspi_atomic_compare_swap(segment_id, offset, rank, comparator, value_new, &
        value_old, timeout) bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id
      integer(gaspi_offset_t), value :: offset
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_atomic_value_t), value :: comparator
      integer(gaspi_atomic_value_t), value :: value_new
      integer(gaspi_atomic_value_t), intent(out) :: value_old
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_atomic_compare_swap

    function gaspi_atomic_max(max_value) bind(C) result(code)
      import
      integer(gaspi_atomic_value_t), intent(out) :: max_value
      integer(gaspi_return_t) :: code
    end function gaspi_atomic_max

    ! Collective communication

    function gaspi_barrier(group, timeout) bind(C) result(code)
      import
      integer(gaspi_group_t), value :: group
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_barrier

    function gaspi_allreduce(buffer_send, buffer_receive, num, operation, datatype, group, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: buffer_send
      type(c_ptr), value :: buffer_receive
      integer(gaspi_number_t), value :: num
      integer(gaspi_operation_t), value :: operation
      integer(gaspi_datatype_t), value :: datatype
      integer(gaspi_group_t), value :: group
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_allreduce

    function gaspi_allreduce_user(buffer_send, buffer_receive, num, element_size, &
        reduce_operation, reduce_state, group, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: buffer_send
      type(c_ptr), value :: buffer_receive
      integer(gaspi_number_t), value :: num
      integer(gaspi_size_t), value :: element_size
      type(c_funptr), value :: reduce_operation
      type(c_ptr), value :: reduce_state
      integer(gaspi_group_t), value :: group
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_allreduce_user

    ! Limits

    function gaspi_transfer_size_min(transfer_size_min) bind(C) result(code)
      import
      integer(gaspi_size_t), intent(out) :: transfer_size_min
      integer(gaspi_return_t) :: code
    end function gaspi_transfer_size_min

    function gaspi_transfer_size_max(transfer_size_max) bind(C) result(code)
      import
      integer(gaspi_size_t), intent(out) :: transfer_size_max
      integer(gaspi_return_t) :: code
    end function gaspi_transfer_size_max

    function gaspi_notification_num(notification_num) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: notification_num
      integer(gaspi_return_t) :: code
    end function gaspi_notification_num

    function gaspi_passive_transfer_size_min(passive_transfer_size_min) bind(C) result(code)
      import
      integer(gaspi_size_t), intent(out) :: passive_transfer_size_min
      integer(gaspi_return_t) :: code
    end function gaspi_passive_transfer_size_min

    function gaspi_passive_transfer_size_max(passive_transfer_size_max) bind(C) result(code)
      import
      integer(gaspi_size_t), intent(out) :: passive_transfer_size_max
      integer(gaspi_return_t) :: code
    end function gaspi_passive_transfer_size_max

    function gaspi_allreduce_buf_size(buf_size) bind(C) result(code)
      import
      integer(gaspi_size_t), intent(out) :: buf_size
      integer(gaspi_return_t) :: code
    end function gaspi_allreduce_buf_size

    function gaspi_allreduce_elem_max(elem_max) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: elem_max
      integer(gaspi_return_t) :: code
    end function gaspi_allreduce_elem_max

    function gaspi_network_type(network_type) bind(C) result(code)
      import
      integer(gaspi_network_t), intent(out) :: network_type
      integer(gaspi_return_t) :: code
    end function gaspi_network_type

    ! Environment

    function gaspi_time_ticks(ticks) bind(C) result(code)
      import
      integer(gaspi_cycles_t), intent(out) :: ticks
      integer(gaspi_return_t) :: code
    end function gaspi_time_ticks

    function gaspi_time_get(wtime) bind(C) result(code)
      import
      real(gaspi_time_t), intent(out) :: wtime
      integer(gaspi_return_t) :: code
    end function gaspi_time_get

    function gaspi_print_error(error_code, error_message) bind(C) result(code)
      import
      integer(gaspi_return_t), value :: error_code
      type(c_ptr), intent(out) :: error_message
      integer(gaspi_return_t) :: code
    end function gaspi_print_error

    ! Profiling

    function gaspi_pcontrol(argument) bind(C) result(code)
      import
      type(c_ptr), value :: argument
      integer(gaspi_return_t) :: code
    end function gaspi_pcontrol

    function gaspi_statistic_verbosity_level(verbosity_level) bind(C) result(code)
      import
      integer(gaspi_number_t), value :: verbosity_level
      integer(gaspi_return_t) :: code
    end function gaspi_statistic_verbosity_level

    function gaspi_statistic_counter_max(counter_max) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: counter_max
      integer(gaspi_return_t) :: code
    end function gaspi_statistic_counter_max

    function gaspi_statistic_counter_info(counter, counter_argument, counter_name, &
        counter_description, verbosity_level) bind(C) result(code)
      import
      integer(gaspi_statistic_counter_t), value :: counter
      integer(gaspi_statistic_argument_t), intent(out) :: counter_argument
      type(c_ptr), intent(out) :: counter_name
      type(c_ptr), intent(out) :: counter_description
      integer(gaspi_number_t), intent(out) :: verbosity_level
      integer(gaspi_return_t) :: code
    end function gaspi_statistic_counter_info

    function gaspi_statistic_counter_get(counter, argument, value) bind(C) result(code)
      import
      integer(gaspi_statistic_counter_t), value :: counter
      integer(gaspi_number_t), value :: argument
      integer(gaspi_ulong), intent(out) :: value
      integer(gaspi_return_t) :: code
    end function gaspi_statistic_counter_get

    function gaspi_statistic_counter_reset(counter) bind(C) result(code)
      import
      integer(gaspi_statistic_counter_t), value :: counter
      integer(gaspi_return_t) :: code
    end function gaspi_statistic_counter_reset

    subroutine gaspi_statistic_print_counters() bind(C)
    end subroutine gaspi_statistic_print_counters
  end interface
end module gaspi
