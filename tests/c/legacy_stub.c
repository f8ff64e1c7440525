/* build: shared */
/*
 * The library that legacy.c is linked against: the names it uses, doing nothing. Built with
 * -Wl,-soname,libGPI2.so.0 as libGPI2.so; never run.
 */
#define NAME(name) \
  void name(void); \
  void name(void) {}

NAME(gaspi_allreduce)
NAME(gaspi_barrier)
NAME(gaspi_config_get)
NAME(gaspi_config_set)
NAME(gaspi_error_str)
NAME(gaspi_notify_reset)
NAME(gaspi_notify_waitsome)
NAME(gaspi_printf)
NAME(gaspi_proc_init)
NAME(gaspi_proc_num)
NAME(gaspi_proc_rank)
NAME(gaspi_proc_term)
NAME(gaspi_segment_create)
NAME(gaspi_segment_ptr)
NAME(gaspi_version)
NAME(gaspi_wait)
NAME(gaspi_write_notify)
