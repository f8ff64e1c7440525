! Each rank greets the next one, in Fortran.
program hello
  use, intrinsic :: iso_c_binding
  use gaspi
  implicit none

  integer(gaspi_segment_id_t), parameter :: segment = 0_gaspi_segment_id_t
  integer(gaspi_queue_id_t), parameter :: queue = 0_gaspi_queue_id_t
  integer(gaspi_notification_id_t), parameter :: id = 0_gaspi_notification_id_t
  integer(gaspi_size_t), parameter :: bytes = 4096, half = 2048

  integer(gaspi_rank_t) :: rank, ranks, next
  integer(gaspi_notification_id_t) :: first
  integer(gaspi_notification_t) :: value
  type(c_ptr) :: memory
  ! The first number goes out, number 257 comes in, 2048 bytes behind it.
  integer(c_long), pointer :: numbers(:)
  integer :: before

  call must(gaspi_proc_init(GASPI_BLOCK))
  call must(gaspi_proc_rank(rank))
  call must(gaspi_proc_num(ranks))
  call must(gaspi_segment_create(segment, bytes, GASPI_GROUP_ALL, GASPI_BLOCK, &
    GASPI_MEM_INITIALIZED))
  call must(gaspi_segment_ptr(segment, memory))
  call c_f_pointer(memory, numbers, [bytes / 8])

  numbers(1) = rank
  next = int(mod(int(rank) + 1, int(ranks)), gaspi_rank_t)
  call must(gaspi_write_notify(segment, 0_gaspi_offset_t, next, segment, half, &
    8_gaspi_size_t, id, 1_gaspi_notification_t, queue, GASPI_BLOCK))
  call must(gaspi_notify_waitsome(segment, id, 1_gaspi_number_t, first, GASPI_BLOCK))
  call must(gaspi_notify_reset(segment, first, value))
  print '(a, i0, a, i0)', 'rank ', rank, ': greetings from rank ', numbers(257)

  call must(gaspi_wait(queue, GASPI_BLOCK))
  before = mod(int(rank) + int(ranks) - 1, int(ranks))
  if (numbers(257) /= before) error stop 1
  call must(gaspi_proc_term(GASPI_BLOCK))

contains

  subroutine must(code)
    integer(gaspi_return_t), intent(in) :: code
    if (code /= GASPI_SUCCESS) error stop 1
  end subroutine must
end program hello
