/* build: compile */
/*
 * All headers together; and gaspi_x has the type of pgaspi_x, so that a profiler's wrapper fits.
 */
#include <GASPI.h>
#include <GASPI_Ext.h>
#include <GASPI_Threads.h>
#include <GPI2_VERSION.h>
#include <PGASPI.h>
#include <gaspi_collectives.h>

#define PAIR(name)                                                                      \
  _Static_assert(_Generic(&gaspi_##name, __typeof__(&pgaspi_##name): 1, default: 0), \
                 "gaspi_" #name " and pgaspi_" #name " have one type")

PAIR(allreduce);
PAIR(allreduce_buf_size);
PAIR(allreduce_elem_max);
PAIR(allreduce_user);
PAIR(atomic_compare_swap);
PAIR(atomic_fetch_add);
PAIR(atomic_max);
PAIR(barrier);
PAIR(build_infrastructure);
PAIR(config_get);
PAIR(config_set);
PAIR(connect);
PAIR(cpu_frequency);
PAIR(delay);
PAIR(disconnect);
PAIR(error_detail);
PAIR(error_str);
PAIR(group_add);
PAIR(group_commit);
PAIR(group_create);
PAIR(group_delete);
PAIR(group_max);
PAIR(group_num);
PAIR(group_ranks);
PAIR(group_size);
PAIR(initialized);
PAIR(network_type);
PAIR(notification_num);
PAIR(notifications_space_size);
PAIR(notify);
PAIR(notify_reset);
PAIR(notify_waitsome);
PAIR(numa_socket);
PAIR(passive_queue_purge);
PAIR(passive_receive);
PAIR(passive_send);
PAIR(passive_transfer_size_max);
PAIR(passive_transfer_size_min);
PAIR(pcontrol);
PAIR(print_affinity_mask);
PAIR(print_error);
PAIR(printf);
PAIR(printf_to);
PAIR(proc_init);
PAIR(proc_kill);
PAIR(proc_local_num);
PAIR(proc_local_rank);
PAIR(proc_num);
PAIR(proc_ping);
PAIR(proc_rank);
PAIR(proc_term);
PAIR(queue_create);
PAIR(queue_delete);
PAIR(queue_max);
PAIR(queue_num);
PAIR(queue_purge);
PAIR(queue_size);
PAIR(queue_size_max);
PAIR(read);
PAIR(read_list);
PAIR(read_list_notify);
PAIR(read_notify);
PAIR(rw_list_elem_max);
PAIR(segment_alloc);
PAIR(segment_avail_local);
PAIR(segment_bind);
PAIR(segment_create);
PAIR(segment_delete);
PAIR(segment_list);
PAIR(segment_max);
PAIR(segment_num);
PAIR(segment_ptr);
PAIR(segment_register);
PAIR(segment_size);
PAIR(segment_use);
PAIR(set_socket_affinity);
PAIR(state_vec_get);
PAIR(statistic_counter_get);
PAIR(statistic_counter_get_f);
PAIR(statistic_counter_info);
PAIR(statistic_counter_max);
PAIR(statistic_counter_reset);
PAIR(statistic_print_counters);
PAIR(statistic_verbosity_level);
PAIR(threads_get_num_cores);
PAIR(threads_get_tid);
PAIR(threads_get_total);
PAIR(threads_init);
PAIR(threads_init_user);
PAIR(threads_register);
PAIR(threads_run);
PAIR(threads_sync);
PAIR(threads_sync_all);
PAIR(threads_term);
PAIR(time_get);
PAIR(time_ticks);
PAIR(transfer_size_max);
PAIR(transfer_size_min);
PAIR(version);
PAIR(wait);
PAIR(write);
PAIR(write_list);
PAIR(write_list_notify);
PAIR(write_notify);
