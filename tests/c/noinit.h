/*
 * noinit.h: all procedures that need a job, called with sound arguments where there is none:
 * before gaspi_proc_init, after gaspi_proc_term, in a forked child.
 */
#ifndef NOINIT_H
#define NOINIT_H

#include "check.h"

#include <GASPI_Threads.h>

#define NOINIT(call) CHECK_ERR(call, GASPI_ERR_NOINIT)

static inline void *noinit_thread(void *argument) { return argument; }

static inline gaspi_return_t noinit_reduce(gaspi_pointer_t one, gaspi_pointer_t two,
                                           gaspi_pointer_t result, gaspi_reduce_state_t state,
                                           gaspi_number_t num, gaspi_size_t element_size,
                                           gaspi_timeout_t timeout) {
  (void)one, (void)two, (void)result, (void)state, (void)num, (void)element_size, (void)timeout;
  return GASPI_SUCCESS;
}

static inline void all_noinit_process(void) {
  gaspi_rank_t rank = 0;
  gaspi_state_t states[1] = {GASPI_STATE_HEALTHY};

  NOINIT(gaspi_proc_term(LIMIT));
  NOINIT(gaspi_proc_rank(&rank));
  NOINIT(gaspi_proc_num(&rank));
  NOINIT(gaspi_proc_kill(0, LIMIT));
  NOINIT(gaspi_proc_ping(0, LIMIT));
  NOINIT(gaspi_proc_local_rank(&rank));
  NOINIT(gaspi_proc_local_num(&rank));
  NOINIT(gaspi_connect(0, LIMIT));
  NOINIT(gaspi_disconnect(0, LIMIT));
  NOINIT(gaspi_state_vec_get(states));
}

static inline void all_noinit_groups_and_segments(void) {
  static char memory[64];
  gaspi_group_t group = 0;
  gaspi_rank_t rank = 0;
  gaspi_number_t number = 0;
  gaspi_segment_id_t segment = 0;
  gaspi_pointer_t pointer = NULL;
  gaspi_size_t size = 0;

  NOINIT(gaspi_group_create(&group));
  NOINIT(gaspi_group_delete(1));
  NOINIT(gaspi_group_add(1, 0));
  NOINIT(gaspi_group_commit(1, LIMIT));
  NOINIT(gaspi_group_num(&number));
  NOINIT(gaspi_group_size(0, &number));
  NOINIT(gaspi_group_ranks(0, &rank));
  NOINIT(gaspi_segment_alloc(0, 64, GASPI_MEM_INITIALIZED));
  NOINIT(gaspi_segment_delete(0));
  NOINIT(gaspi_segment_register(0, 0, LIMIT));
  NOINIT(gaspi_segment_create(0, 64, GASPI_GROUP_ALL, LIMIT, GASPI_MEM_INITIALIZED));
  NOINIT(gaspi_segment_bind(0, memory, sizeof memory, 0));
  NOINIT(gaspi_segment_use(0, memory, sizeof memory, GASPI_GROUP_ALL, LIMIT, 0));
  NOINIT(gaspi_segment_num(&number));
  NOINIT(gaspi_segment_list(1, &segment));
  NOINIT(gaspi_segment_ptr(0, &pointer));
  NOINIT(gaspi_segment_avail_local(&segment));
  NOINIT(gaspi_segment_size(0, 0, &size));
}

static inline void all_noinit_communication(void) {
  gaspi_segment_id_t segment = 0;
  gaspi_offset_t offset = 0;
  gaspi_size_t size = 1;
  gaspi_notification_id_t first = 0;
  gaspi_notification_t value = 0;
  gaspi_queue_id_t queue = 0;
  gaspi_number_t number = 0;
  gaspi_rank_t rank = 0;
  gaspi_atomic_value_t old = 0;
  int one = 1;
  int two = 0;

  NOINIT(gaspi_write(0, 0, 0, 0, 0, 1, 0, LIMIT));
  NOINIT(gaspi_read(0, 0, 0, 0, 0, 1, 0, LIMIT));
  NOINIT(gaspi_write_list(1, &segment, &offset, 0, &segment, &offset, &size, 0, LIMIT));
  NOINIT(gaspi_read_list(1, &segment, &offset, 0, &segment, &offset, &size, 0, LIMIT));
  NOINIT(gaspi_wait(0, LIMIT));
  NOINIT(gaspi_notify(0, 0, 0, 1, 0, LIMIT));
  NOINIT(gaspi_notify_waitsome(0, 0, 1, &first, LIMIT));
  NOINIT(gaspi_notify_reset(0, 0, &value));
  NOINIT(gaspi_write_notify(0, 0, 0, 0, 0, 1, 0, 1, 0, LIMIT));
  NOINIT(gaspi_read_notify(0, 0, 0, 0, 0, 1, 0, 0, LIMIT));
  NOINIT(gaspi_write_list_notify(1, &segment, &offset, 0, &segment, &offset, &size, 0, 0, 1, 0,
                                 LIMIT));
  NOINIT(
      gaspi_read_list_notify(1, &segment, &offset, 0, &segment, &offset, &size, 0, 0, 0, LIMIT));
  NOINIT(gaspi_queue_create(&queue, LIMIT));
  NOINIT(gaspi_queue_delete(0));
  NOINIT(gaspi_queue_size(0, &number));
  NOINIT(gaspi_queue_purge(0, LIMIT));
  NOINIT(gaspi_passive_send(0, 0, 0, 1, LIMIT));
  NOINIT(gaspi_passive_receive(0, 0, &rank, 1, LIMIT));
  NOINIT(gaspi_passive_queue_purge(LIMIT));
  NOINIT(gaspi_atomic_fetch_add(0, 0, 0, 1, &old, LIMIT));
  NOINIT(gaspi_atomic_compare_swap(0, 0, 0, 1, 1, &old, LIMIT));
  NOINIT(gaspi_barrier(GASPI_GROUP_ALL, LIMIT));
  NOINIT(gaspi_allreduce(&one, &two, 1, GASPI_OP_SUM, GASPI_TYPE_INT, GASPI_GROUP_ALL, LIMIT));
  NOINIT(gaspi_allreduce_user(&one, &two, 1, sizeof one, noinit_reduce, NULL, GASPI_GROUP_ALL,
                              LIMIT));
}

/* The limits are those of a job. */
static inline void all_noinit_limits(void) {
  gaspi_number_t number = 0;
  gaspi_size_t size = 0;
  gaspi_atomic_value_t value = 0;
  gaspi_network_t network = GASPI_ETHERNET;

  NOINIT(gaspi_build_infrastructure(&number));
  NOINIT(gaspi_group_max(&number));
  NOINIT(gaspi_segment_max(&number));
  NOINIT(gaspi_queue_num(&number));
  NOINIT(gaspi_queue_size_max(&number));
  NOINIT(gaspi_queue_max(&number));
  NOINIT(gaspi_atomic_max(&value));
  NOINIT(gaspi_transfer_size_min(&size));
  NOINIT(gaspi_transfer_size_max(&size));
  NOINIT(gaspi_notification_num(&number));
  NOINIT(gaspi_notifications_space_size(&number));
  NOINIT(gaspi_passive_transfer_size_min(&size));
  NOINIT(gaspi_passive_transfer_size_max(&size));
  NOINIT(gaspi_allreduce_buf_size(&size));
  NOINIT(gaspi_allreduce_elem_max(&number));
  NOINIT(gaspi_rw_list_elem_max(&number));
  NOINIT(gaspi_network_type(&network));
}

static inline void all_noinit_threads(void) {
  gaspi_int number = 0;

  NOINIT(gaspi_threads_init(&number));
  NOINIT(gaspi_threads_init_user(2));
  NOINIT(gaspi_threads_term());
  NOINIT(gaspi_threads_run(noinit_thread, NULL));
  NOINIT(gaspi_threads_register(&number));
  NOINIT(gaspi_threads_get_tid(&number));
  NOINIT(gaspi_threads_get_total(&number));
  NOINIT(gaspi_threads_get_num_cores(&number));
  NOINIT(gaspi_threads_sync_all(GASPI_GROUP_ALL, LIMIT));
}

static inline gaspi_return_t noinit_combine(const void *left, const void *right, void *result,
                                            uint64_t count, gaspi_size_t element_size,
                                            void *state) {
  (void)left, (void)right, (void)result, (void)count, (void)element_size, (void)state;
  return GASPI_SUCCESS;
}

static inline void all_noinit_requests(gaspi_coll_request_t request) {
  int done = 0;

  NOINIT(gaspi_coll_start(request));
  NOINIT(gaspi_coll_test(request, &done));
  NOINIT(gaspi_coll_wait(request, LIMIT));
  NOINIT(gaspi_coll_wait_all(1, &request, LIMIT));
  NOINIT(gaspi_coll_free(request));
}

static inline void all_noinit_fusion(void) {
  const gaspi_fusion_tensor_t tensor = {1, GASPI_COLL_TYPE_F32, 0};
  gaspi_fusion_t fusion = 1;
  gaspi_size_t number = 0;
  const void *sum = NULL;
  void *place = NULL;
  float data = 0;
  int done = 0;

  NOINIT(gaspi_fusion_create(&tensor, 1, GASPI_GROUP_ALL, NULL, &fusion, LIMIT));
  NOINIT(gaspi_fusion_submit(fusion, 0, &data, 1.0));
  NOINIT(gaspi_fusion_test(fusion, 0, &data, &done));
  NOINIT(gaspi_fusion_wait(fusion, 0, &data, LIMIT));
  NOINIT(gaspi_fusion_result(fusion, 0, &sum, LIMIT));
  NOINIT(gaspi_fusion_release(fusion, 0, &data));
  NOINIT(gaspi_fusion_tensor_ptr(fusion, 0, &place));
  NOINIT(gaspi_fusion_next(fusion, &number, LIMIT));
  NOINIT(gaspi_fusion_on_end(fusion, NULL, NULL));
  NOINIT(gaspi_fusion_fd(fusion, &done));
  NOINIT(gaspi_fusion_buckets(fusion, &number));
  NOINIT(gaspi_fusion_bucket(fusion, 0, &number));
  NOINIT(gaspi_fusion_free(fusion));
}

static inline void all_noinit_collectives(void) {
  static char from[64], to[64];
  const uint64_t counts[1] = {4};
  gaspi_coll_request_t request = 0;
  gaspi_coll_op_t op = 0;

  NOINIT(gaspi_coll_allreduce(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_COLL_OP_SUM, GASPI_GROUP_ALL,
                              NULL, LIMIT));
  NOINIT(gaspi_coll_allreduce_start(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_COLL_OP_SUM,
                                    GASPI_GROUP_ALL, NULL, &request, LIMIT));
  NOINIT(gaspi_coll_allreduce_init(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_COLL_OP_SUM,
                                   GASPI_GROUP_ALL, NULL, &request, LIMIT));
  NOINIT(gaspi_coll_reduce(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_COLL_OP_SUM, 0, GASPI_GROUP_ALL,
                           NULL, LIMIT));
  NOINIT(gaspi_coll_reduce_start(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_COLL_OP_SUM, 0,
                                 GASPI_GROUP_ALL, NULL, &request, LIMIT));
  NOINIT(gaspi_coll_reduce_init(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_COLL_OP_SUM, 0,
                                GASPI_GROUP_ALL, NULL, &request, LIMIT));
  NOINIT(gaspi_coll_broadcast(from, to, 4, GASPI_COLL_TYPE_I32, 0, GASPI_GROUP_ALL, NULL, LIMIT));
  NOINIT(gaspi_coll_broadcast_start(from, to, 4, GASPI_COLL_TYPE_I32, 0, GASPI_GROUP_ALL, NULL,
                                    &request, LIMIT));
  NOINIT(gaspi_coll_broadcast_init(from, to, 4, GASPI_COLL_TYPE_I32, 0, GASPI_GROUP_ALL, NULL,
                                   &request, LIMIT));
  NOINIT(gaspi_coll_broadcast_list(NULL, 0, 0, GASPI_GROUP_ALL, NULL, LIMIT));
  NOINIT(gaspi_coll_broadcast_list_start(NULL, 0, 0, GASPI_GROUP_ALL, NULL, &request, LIMIT));
  NOINIT(gaspi_coll_reduce_scatter(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_COLL_OP_SUM,
                                   GASPI_GROUP_ALL, NULL, LIMIT));
  NOINIT(gaspi_coll_reduce_scatter_start(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_COLL_OP_SUM,
                                         GASPI_GROUP_ALL, NULL, &request, LIMIT));
  NOINIT(gaspi_coll_reduce_scatter_init(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_COLL_OP_SUM,
                                        GASPI_GROUP_ALL, NULL, &request, LIMIT));
  NOINIT(gaspi_coll_allgather(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_GROUP_ALL, NULL, LIMIT));
  NOINIT(gaspi_coll_allgather_start(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_GROUP_ALL, NULL,
                                    &request, LIMIT));
  NOINIT(gaspi_coll_allgather_init(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_GROUP_ALL, NULL,
                                   &request, LIMIT));
  NOINIT(gaspi_coll_allgatherv(from, to, counts, counts, GASPI_COLL_TYPE_I32, GASPI_GROUP_ALL, NULL,
                               LIMIT));
  NOINIT(gaspi_coll_allgatherv_start(from, to, counts, counts, GASPI_COLL_TYPE_I32, GASPI_GROUP_ALL,
                                     NULL, &request, LIMIT));
  NOINIT(gaspi_coll_allgatherv_init(from, to, counts, counts, GASPI_COLL_TYPE_I32, GASPI_GROUP_ALL,
                                    NULL, &request, LIMIT));
  NOINIT(gaspi_coll_gather(from, to, 4, GASPI_COLL_TYPE_I32, 0, GASPI_GROUP_ALL, NULL, LIMIT));
  NOINIT(gaspi_coll_gather_start(from, to, 4, GASPI_COLL_TYPE_I32, 0, GASPI_GROUP_ALL, NULL,
                                 &request, LIMIT));
  NOINIT(gaspi_coll_gather_init(from, to, 4, GASPI_COLL_TYPE_I32, 0, GASPI_GROUP_ALL, NULL,
                                &request, LIMIT));
  NOINIT(gaspi_coll_scatter(from, to, 4, GASPI_COLL_TYPE_I32, 0, GASPI_GROUP_ALL, NULL, LIMIT));
  NOINIT(gaspi_coll_scatter_start(from, to, 4, GASPI_COLL_TYPE_I32, 0, GASPI_GROUP_ALL, NULL,
                                  &request, LIMIT));
  NOINIT(gaspi_coll_scatter_init(from, to, 4, GASPI_COLL_TYPE_I32, 0, GASPI_GROUP_ALL, NULL,
                                 &request, LIMIT));
  NOINIT(gaspi_coll_alltoall(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_GROUP_ALL, NULL, LIMIT));
  NOINIT(gaspi_coll_alltoall_start(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_GROUP_ALL, NULL,
                                   &request, LIMIT));
  NOINIT(gaspi_coll_alltoall_init(from, to, 4, GASPI_COLL_TYPE_I32, GASPI_GROUP_ALL, NULL, &request,
                                  LIMIT));
  NOINIT(gaspi_coll_alltoallv(from, counts, counts, to, counts, counts, GASPI_COLL_TYPE_I32,
                              GASPI_GROUP_ALL, NULL, LIMIT));
  NOINIT(gaspi_coll_alltoallv_start(from, counts, counts, to, counts, counts, GASPI_COLL_TYPE_I32,
                                    GASPI_GROUP_ALL, NULL, &request, LIMIT));
  NOINIT(gaspi_coll_alltoallv_init(from, counts, counts, to, counts, counts, GASPI_COLL_TYPE_I32,
                                   GASPI_GROUP_ALL, NULL, &request, LIMIT));
  NOINIT(gaspi_coll_barrier(GASPI_GROUP_ALL, NULL, LIMIT));
  NOINIT(gaspi_coll_barrier_start(GASPI_GROUP_ALL, NULL, &request, LIMIT));
  NOINIT(gaspi_coll_barrier_init(GASPI_GROUP_ALL, NULL, &request, LIMIT));
  all_noinit_requests(request);
  NOINIT(gaspi_coll_op_create(noinit_combine, NULL, 4, 0, &op));
  NOINIT(gaspi_coll_op_free(op));
}

/* Everything that needs a job says so. */
static inline void all_noinit(void) {
  all_noinit_process();
  all_noinit_groups_and_segments();
  all_noinit_communication();
  all_noinit_limits();
  all_noinit_threads();
  all_noinit_collectives();
  all_noinit_fusion();
}

#endif /* NOINIT_H */
