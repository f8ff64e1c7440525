! gaspi_ext.f90: the procedures of GASPI_Ext.h, and gaspi_error_detail of gaspi_collectives.h, for
! Fortran. Interfaces only; what each procedure does is said there.
!
! SPDX-License-Identifier: MIT OR Apache-2.0
module gaspi_ext
  use gaspi_types
  implicit none
  public

  interface
    function gaspi_initialized(initialized) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: initialized
      integer(gaspi_return_t) :: code
    end function gaspi_initialized

    function gaspi_proc_local_rank(local_rank) bind(C) result(code)
      import
      integer(gaspi_rank_t), intent(out) :: local_rank
      integer(gaspi_return_t) :: code
    end function gaspi_proc_local_rank

    function gaspi_proc_local_num(local_num) bind(C) result(code)
      import
      integer(gaspi_rank_t), intent(out) :: local_num
      integer(gaspi_return_t) :: code
    end function gaspi_proc_local_num

    function gaspi_cpu_frequency(cpu_mhz) bind(C) result(code)
      import
      real(gaspi_float), intent(out) :: cpu_mhz
      integer(gaspi_return_t) :: code
    end function gaspi_cpu_frequency

    subroutine gaspi_print_affinity_mask() bind(C)
    end subroutine gaspi_print_affinity_mask

    function gaspi_numa_socket(socket) bind(C) result(code)
      import
      integer(gaspi_uchar), intent(out) :: socket
      integer(gaspi_return_t) :: code
    end function gaspi_numa_socket

    function gaspi_set_socket_affinity(socket) bind(C) result(code)
      import
      integer(gaspi_uchar), value :: socket
      integer(gaspi_return_t) :: code
    end function gaspi_set_socket_affinity

    function gaspi_error_str(error_code) bind(C) result(text)
      import
      integer(gaspi_return_t), value :: error_code
      type(c_ptr) :: text
    end function gaspi_error_str

    function gaspi_proc_ping(rank, timeout) bind(C) result(code)
      import
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_proc_ping

    function gaspi_segment_avail_local(segment_id) bind(C) result(code)
      import
      integer(gaspi_segment_id_t), intent(out) :: segment_id
      integer(gaspi_return_t) :: code
    end function gaspi_segment_avail_local

    function gaspi_segment_size(segment_id, rank, size) bind(C) result(code)
      import
      integer(gaspi_segment_id_t), value :: segment_id
      integer(gaspi_rank_t), value :: rank
      integer(gaspi_size_t), intent(out) :: size
      integer(gaspi_return_t) :: code
    end function gaspi_segment_size

    function gaspi_rw_list_elem_max(elem_max) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: elem_max
      integer(gaspi_return_t) :: code
    end function gaspi_rw_list_elem_max

    function gaspi_notifications_space_size(size) bind(C) result(code)
      import
      integer(gaspi_number_t), intent(out) :: size
      integer(gaspi_return_t) :: code
    end function gaspi_notifications_space_size

    function gaspi_statistic_counter_get_f(counter, argument, value) bind(C) result(code)
      import
      integer(gaspi_statistic_counter_t), value :: counter
      integer(gaspi_number_t), value :: argument
      real(gaspi_float), intent(out) :: value
      integer(gaspi_return_t) :: code
    end function gaspi_statistic_counter_get_f

    subroutine gaspi_delay() bind(C)
    end subroutine gaspi_delay

    ! Prints a text that ends with c_null_char. It is a format: write a percent sign as "%%".
    subroutine gaspi_printf(text) bind(C)
      import
      character(kind=c_char), intent(in) :: text(*)
    end subroutine gaspi_printf

    ! gaspi_printf to the logger of a rank's host.
    subroutine gaspi_printf_to(rank, text) bind(C)
      import
      integer(gaspi_rank_t), value :: rank
      character(kind=c_char), intent(in) :: text(*)
    end subroutine gaspi_printf_to

    ! The cause of the last failed call; `text` is the address of `size` bytes.
    function gaspi_error_detail(text, size) bind(C) result(code)
      import
      type(c_ptr), value :: text
      integer(gaspi_size_t), value :: size
      integer(gaspi_return_t) :: code
    end function gaspi_error_detail
  end interface
end module gaspi_ext
