/* ranks: 1 2 5 */
/*
 * Configuration: defaults, limits, refusals that change nothing, values that take effect, and the
 * three topologies.
 */
#include "check.h"

static gaspi_config_t current(void) {
  gaspi_config_t config;
  memset(&config, 0, sizeof config);
  CHECK_OK(gaspi_config_get(&config));
  return config;
}

static void defaults(void) {
  const gaspi_config_t config = current();

  CHECK(config.logger == 1);
  CHECK(config.sn_port == 12121);
  CHECK(config.net_info == 0);
  CHECK(config.user_net == 0);
  CHECK(config.sn_persistent == 1);
  CHECK(config.sn_timeout == 30000);
  CHECK(config.dev_config.params.ib.netdev_id == -1);
  CHECK(config.dev_config.params.ib.mtu == 0);
  CHECK(config.dev_config.params.ib.port_check == 1);
  CHECK(config.dev_config.params.tcp.port == 19000);
  CHECK(config.dev_config.params.ofi.use_shm == 1);
  CHECK(config.dev_config.params.ofi.provider_info == 0);
  CHECK(config.dev_config.params.ofi.progress_auto == 1);
  CHECK(config.queue_size_max == 1024);
  CHECK(config.queue_num == 8);
  CHECK(config.group_max == 32);
  CHECK(config.segment_max == 255);
  CHECK(config.transfer_size_max == 1ul << 30);
  CHECK(config.notification_num == 65536);
  CHECK(config.passive_queue_size_max == 1024);
  CHECK(config.passive_transfer_size_max == 65535);
  CHECK(config.allreduce_buf_size == 2040);
  CHECK(config.allreduce_elem_max == 255);
  CHECK(config.rw_list_elem_max == 255);
  CHECK(config.build_infrastructure == GASPI_TOPOLOGY_STATIC);
  CHECK(config.user_defined == NULL);
}

/* Sets one field of what is set now. */
#define SET(field, value)                    \
  do {                                       \
    gaspi_config_t changed = current();      \
    changed.field = (value);                 \
    CHECK_OK(gaspi_config_set(changed));     \
    CHECK(current().field == changed.field); \
  } while (0)

/* A value that is refused, with another field changed as well: neither is taken. */
#define REFUSED(field, value)                                    \
  do {                                                           \
    const gaspi_config_t before = current();                     \
    gaspi_config_t changed = before;                             \
    gaspi_config_t after;                                        \
    changed.sn_timeout = before.sn_timeout + 1;                  \
    changed.user_defined = &changed;                             \
    changed.field = (value);                                     \
    CHECK_ERR(gaspi_config_set(changed), GASPI_ERR_CONFIG);      \
    after = current();                                           \
    CHECK(after.field == before.field);                          \
    CHECK(after.sn_timeout == before.sn_timeout);                \
    CHECK(after.user_defined == before.user_defined);            \
  } while (0)

/* The smallest and largest value are taken, one less and one more are not. */
#define RANGE(field, smallest, largest) \
  do {                                  \
    SET(field, smallest);               \
    SET(field, largest);                \
    REFUSED(field, (smallest)-1);       \
    REFUSED(field, (largest) + 1);      \
  } while (0)

static void limits(void) {
  RANGE(sn_port, 1024u, 65536u);
  SET(dev_config.params.ib.netdev_id, 4);
  SET(dev_config.params.ib.netdev_id, -1);
  REFUSED(dev_config.params.ib.netdev_id, 5);
  SET(dev_config.params.ib.mtu, 1024u);
  SET(dev_config.params.ib.mtu, 2048u);
  SET(dev_config.params.ib.mtu, 4096u);
  SET(dev_config.params.ib.mtu, 0u);
  REFUSED(dev_config.params.ib.mtu, 1500u);
  RANGE(queue_size_max, 1u, 4096u);
  RANGE(queue_num, 1u, 16u);
  RANGE(group_max, 1u, 255u);
  RANGE(segment_max, 1u, 255u);
  RANGE(transfer_size_max, 1ul, 1ul << 30);
  SET(notification_num, 0u);
  SET(notification_num, 1u << 20);
  REFUSED(notification_num, (1u << 20) + 1);
  RANGE(passive_queue_size_max, 1u, 4096u);
  RANGE(passive_transfer_size_max, 1u, 65535u);
  RANGE(allreduce_elem_max, 1u, 1u << 31);
  RANGE(rw_list_elem_max, 1u, 255u);
  SET(build_infrastructure, GASPI_TOPOLOGY_NONE);
  SET(build_infrastructure, GASPI_TOPOLOGY_DYNAMIC);
  REFUSED(build_infrastructure, (gaspi_topology_t)3);
  REFUSED(network, GASPI_GEMINI);
  REFUSED(network, GASPI_ARIES);
  REFUSED(network, GASPI_OFI);
  REFUSED(network, (gaspi_network_t)6);
  SET(logger, 0u);
  SET(net_info, 0u);
  SET(sn_persistent, 0);
  SET(sn_timeout, 1ul);
}

static void network(void) {
  const gaspi_config_t before = current();
  gaspi_config_t changed = before;

  changed.network = before.network == GASPI_ROCE ? GASPI_IB : GASPI_ROCE;
  CHECK_OK(gaspi_config_set(changed));
  CHECK(current().network == changed.network);
  CHECK(current().user_net == 1);
}

/* Beside the group of all there are four more. */
static void effective_groups(void) {
  gaspi_number_t number = 0;
  gaspi_group_t group = 0;

  CHECK_OK(gaspi_group_max(&number));
  CHECK(number == 5);
  for (int at = 1; at < 5; at++) {
    CHECK_OK(gaspi_group_create(&group));
  }
  CHECK_ERR(gaspi_group_create(&group), GASPI_ERR_MANY_GRP);
}

/* Every limit is what was asked for, and is kept. */
static void effective(gaspi_config_t config) {
  gaspi_number_t number = 0;
  gaspi_size_t size = 0;
  gaspi_uint in[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  gaspi_uint out[8];
  gaspi_segment_id_t segments[4] = {0, 0, 0, 0};
  gaspi_offset_t offsets[4] = {0, 0, 0, 0};
  gaspi_size_t sizes[4] = {1, 1, 1, 1};

  config.queue_num = 3;
  config.queue_size_max = 17;
  config.group_max = 5;
  config.segment_max = 9;
  config.notification_num = 100;
  config.transfer_size_max = 4096;
  config.passive_transfer_size_max = 100;
  config.allreduce_elem_max = 7;
  config.rw_list_elem_max = 3;
  config.user_defined = out;
  CHECK_OK(gaspi_config_set(config));
  job_start();
  CHECK(current().user_defined == out);
  (void)segment_on_all(0, 8192);

  CHECK_OK(gaspi_queue_num(&number));
  CHECK(number == 3);
  CHECK_ERR(gaspi_notify(0, my_rank, 0, 1, 3, LIMIT), GASPI_ERR_INV_QUEUE);
  CHECK_OK(gaspi_queue_size_max(&number));
  CHECK(number == 17);
  for (int at = 0; at < 17; at++) {
    CHECK_OK(gaspi_notify(0, my_rank, 0, 1, 2, LIMIT));
  }
  CHECK_RC(gaspi_notify(0, my_rank, 0, 1, 2, LIMIT), GASPI_QUEUE_FULL);
  CHECK_OK(gaspi_wait(2, LIMIT));

  CHECK_OK(gaspi_notification_num(&number));
  CHECK(number == 100);
  CHECK_OK(gaspi_notify(0, my_rank, 99, 1, 2, LIMIT));
  CHECK_ERR(gaspi_notify(0, my_rank, 100, 1, 2, LIMIT), GASPI_ERR_INV_NOTIF_ID);
  CHECK_OK(gaspi_transfer_size_max(&size));
  CHECK(size == 4096);
  CHECK_OK(gaspi_write(0, 0, my_rank, 0, 4096, 4096, 0, LIMIT));
  CHECK_ERR(gaspi_write(0, 0, my_rank, 0, 0, 4097, 0, LIMIT), GASPI_ERR_INV_COMMSIZE);
  CHECK_OK(gaspi_passive_transfer_size_max(&size));
  CHECK(size == 100);
  CHECK_ERR(gaspi_passive_send(0, 0, my_rank, 101, LIMIT), GASPI_ERR_INV_COMMSIZE);
  CHECK_OK(gaspi_rw_list_elem_max(&number));
  CHECK(number == 3);
  CHECK_ERR(gaspi_write_list(4, segments, offsets, my_rank, segments, offsets, sizes, 0, LIMIT),
            GASPI_ERR_INV_NUM);
  CHECK_OK(gaspi_allreduce_elem_max(&number));
  CHECK(number == 7);
  CHECK_OK(gaspi_allreduce_buf_size(&size));
  CHECK(size == 56);
  CHECK_OK(gaspi_allreduce(in, out, 7, GASPI_OP_SUM, GASPI_TYPE_UINT, GASPI_GROUP_ALL, LIMIT));
  CHECK_ERR(gaspi_allreduce(in, out, 8, GASPI_OP_SUM, GASPI_TYPE_UINT, GASPI_GROUP_ALL, LIMIT),
            GASPI_ERR_INV_NUM);
  CHECK_OK(gaspi_segment_max(&number));
  CHECK(number == 9);
  CHECK_ERR(gaspi_segment_alloc(9, 64, GASPI_MEM_INITIALIZED), GASPI_ERR_INV_SEG);
  CHECK_OK(gaspi_segment_alloc(8, 64, GASPI_MEM_INITIALIZED));
  effective_groups();
  CHECK_OK(gaspi_wait(0, LIMIT));
  CHECK_OK(gaspi_wait(2, LIMIT));
  job_end();
}

/* Without a topology there is no group of all: connect, then make one. */
static void no_topology(gaspi_config_t config) {
  gaspi_number_t number = 9;
  gaspi_group_t group = 9;

  config.build_infrastructure = GASPI_TOPOLOGY_NONE;
  CHECK_OK(gaspi_config_set(config));
  job_start();
  CHECK_OK(gaspi_build_infrastructure(&number));
  CHECK(number == GASPI_TOPOLOGY_NONE);
  CHECK_ERR(gaspi_barrier(GASPI_GROUP_ALL, LIMIT), GASPI_ERR_INV_GROUP);
  CHECK_OK(gaspi_group_num(&number));
  CHECK(number == 1);
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK_OK(gaspi_connect(rank, LIMIT));
  }
  CHECK_OK(gaspi_group_create(&group));
  CHECK(group == 1);
  for (gaspi_rank_t rank = 0; rank < ranks; rank++) {
    CHECK_OK(gaspi_group_add(group, rank));
  }
  CHECK_OK(gaspi_group_commit(group, LIMIT));
  CHECK_OK(gaspi_segment_create(0, 64, group, LIMIT, GASPI_MEM_INITIALIZED));
  CHECK_OK(gaspi_notify(0, rank_after(1), 0, 1, 0, LIMIT));
  (void)take(0, 0);
  CHECK_OK(gaspi_wait(0, LIMIT));
  CHECK_OK(gaspi_barrier(group, LIMIT));
  CHECK_OK(gaspi_proc_term(LIMIT));
}

/* With a dynamic topology nothing has to be connected first. */
static void dynamic_topology(gaspi_config_t config) {
  config.build_infrastructure = GASPI_TOPOLOGY_DYNAMIC;
  CHECK_OK(gaspi_config_set(config));
  job_start();
  (void)segment_on_all(0, 64);
  CHECK_OK(gaspi_notify(0, rank_after(1), 0, 1, 0, LIMIT));
  (void)take(0, 0);
  CHECK_OK(gaspi_wait(0, LIMIT));
  job_end();
}

int main(void) {
  const gaspi_config_t original = current();

  CHECK_ERR(gaspi_config_get(NULL), GASPI_ERR_NULLPTR);
  defaults();
  limits();
  network();
  CHECK_OK(gaspi_config_set(original));
  effective(original);
  no_topology(original);
  dynamic_topology(original);
  return 0;
}
