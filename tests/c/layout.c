/* ranks: 1 */
/* launcher: none */
/*
 * Sizes, offsets and numbers, as existing binaries were compiled with.
 */
#include <GASPI.h>
#include <GASPI_Threads.h>

#include <stddef.h>

#define SAME(expression, value) \
  _Static_assert((expression) == (value), #expression " is " #value)

SAME(sizeof(gaspi_char), 1);
SAME(sizeof(gaspi_uchar), 1);
SAME(sizeof(gaspi_short), 2);
SAME(sizeof(gaspi_ushort), 2);
SAME(sizeof(gaspi_int), 4);
SAME(sizeof(gaspi_uint), 4);
SAME(sizeof(gaspi_long), 8);
SAME(sizeof(gaspi_ulong), 8);
SAME(sizeof(gaspi_float), 4);
SAME(sizeof(gaspi_double), 8);
SAME(sizeof(gaspi_timeout_t), 8);
SAME(sizeof(gaspi_rank_t), 2);
SAME(sizeof(gaspi_group_t), 1);
SAME(sizeof(gaspi_number_t), 4);
SAME(sizeof(gaspi_pointer_t), 8);
SAME(sizeof(gaspi_reduce_state_t), 8);
SAME(sizeof(gaspi_queue_id_t), 1);
SAME(sizeof(gaspi_size_t), 8);
SAME(sizeof(gaspi_offset_t), 8);
SAME(sizeof(gaspi_segment_id_t), 1);
SAME(sizeof(gaspi_string_t), 8);
SAME(sizeof(gaspi_time_t), 4);
SAME(sizeof(gaspi_atomic_value_t), 8);
SAME(sizeof(gaspi_notification_id_t), 4);
SAME(sizeof(gaspi_notification_t), 4);
SAME(sizeof(gaspi_statistic_counter_t), 4);
SAME(sizeof(gaspi_cycles_t), 8);
SAME(sizeof(gaspi_memory_description_t), 4);
SAME(sizeof(gaspi_return_t), 4);
SAME(sizeof(gaspi_operation_t), 4);
SAME(sizeof(gaspi_datatype_t), 4);
SAME(sizeof(gaspi_network_t), 4);
SAME(sizeof(gaspi_alloc_t), 4);
SAME(sizeof(gaspi_state_t), 4);
SAME(sizeof(gaspi_state_vector_t), 8);
SAME(sizeof(gaspi_statistic_argument_t), 4);
SAME(sizeof(gaspi_topology_t), 4);
SAME(sizeof(gaspi_reduce_operation_t), 8);
SAME(sizeof GASPI_BLOCK, 8);
SAME(sizeof GASPI_TEST, 8);
SAME(sizeof GASPI_GROUP_ALL, 1);

/* Unsigned types are unsigned, and signed ones signed. */
_Static_assert((gaspi_rank_t)-1 > 0, "gaspi_rank_t");
_Static_assert((gaspi_group_t)-1 > 0, "gaspi_group_t");
_Static_assert((gaspi_timeout_t)-1 > 0, "gaspi_timeout_t");
_Static_assert((gaspi_size_t)-1 > 0, "gaspi_size_t");
_Static_assert((gaspi_offset_t)-1 > 0, "gaspi_offset_t");
_Static_assert((gaspi_number_t)-1 > 0, "gaspi_number_t");
_Static_assert((gaspi_notification_t)-1 > 0, "gaspi_notification_t");
_Static_assert((gaspi_atomic_value_t)-1 > 0, "gaspi_atomic_value_t");
_Static_assert((gaspi_memory_description_t)-1 < 0, "gaspi_memory_description_t");

SAME(sizeof(gaspi_config_t), 144);
SAME(_Alignof(gaspi_config_t), 8);
SAME(offsetof(gaspi_config_t, logger), 0);
SAME(offsetof(gaspi_config_t, sn_port), 4);
SAME(offsetof(gaspi_config_t, net_info), 8);
SAME(offsetof(gaspi_config_t, user_net), 12);
SAME(offsetof(gaspi_config_t, sn_persistent), 16);
SAME(offsetof(gaspi_config_t, sn_timeout), 24);
SAME(offsetof(gaspi_config_t, dev_config), 32);
SAME(offsetof(gaspi_config_t, dev_config.network_type), 32);
SAME(offsetof(gaspi_config_t, dev_config.params.ib.netdev_id), 36);
SAME(offsetof(gaspi_config_t, dev_config.params.ib.mtu), 40);
SAME(offsetof(gaspi_config_t, dev_config.params.ib.port_check), 44);
SAME(offsetof(gaspi_config_t, dev_config.params.tcp.port), 48);
SAME(offsetof(gaspi_config_t, dev_config.params.ofi.use_shm), 52);
SAME(offsetof(gaspi_config_t, dev_config.params.ofi.provider_info), 56);
SAME(offsetof(gaspi_config_t, dev_config.params.ofi.progress_auto), 60);
SAME(offsetof(gaspi_config_t, network), 64);
SAME(offsetof(gaspi_config_t, queue_size_max), 68);
SAME(offsetof(gaspi_config_t, queue_num), 72);
SAME(offsetof(gaspi_config_t, group_max), 76);
SAME(offsetof(gaspi_config_t, segment_max), 80);
SAME(offsetof(gaspi_config_t, transfer_size_max), 88);
SAME(offsetof(gaspi_config_t, notification_num), 96);
SAME(offsetof(gaspi_config_t, passive_queue_size_max), 100);
SAME(offsetof(gaspi_config_t, passive_transfer_size_max), 104);
SAME(offsetof(gaspi_config_t, allreduce_buf_size), 112);
SAME(offsetof(gaspi_config_t, allreduce_elem_max), 120);
SAME(offsetof(gaspi_config_t, rw_list_elem_max), 124);
SAME(offsetof(gaspi_config_t, build_infrastructure), 128);
SAME(offsetof(gaspi_config_t, user_defined), 136);

SAME(GASPI_ERROR, -1);
SAME(GASPI_SUCCESS, 0);
SAME(GASPI_TIMEOUT, 1);
SAME(GASPI_ERR_EMFILE, 2);
SAME(GASPI_ERR_ENV, 3);
SAME(GASPI_ERR_SN_PORT, 4);
SAME(GASPI_ERR_CONFIG, 5);
SAME(GASPI_ERR_NOINIT, 6);
SAME(GASPI_ERR_INITED, 7);
SAME(GASPI_ERR_NULLPTR, 8);
SAME(GASPI_ERR_INV_SEGSIZE, 9);
SAME(GASPI_ERR_INV_SEG, 10);
SAME(GASPI_ERR_INV_GROUP, 11);
SAME(GASPI_ERR_INV_RANK, 12);
SAME(GASPI_ERR_INV_QUEUE, 13);
SAME(GASPI_ERR_INV_LOC_OFF, 14);
SAME(GASPI_ERR_INV_REM_OFF, 15);
SAME(GASPI_ERR_INV_COMMSIZE, 16);
SAME(GASPI_ERR_INV_NOTIF_VAL, 17);
SAME(GASPI_ERR_INV_NOTIF_ID, 18);
SAME(GASPI_ERR_INV_NUM, 19);
SAME(GASPI_ERR_INV_SIZE, 20);
SAME(GASPI_ERR_MANY_SEG, 21);
SAME(GASPI_ERR_MANY_GRP, 22);
SAME(GASPI_QUEUE_FULL, 23);
SAME(GASPI_ERR_UNALIGN_OFF, 24);
SAME(GASPI_ERR_ACTIVE_COLL, 25);
SAME(GASPI_ERR_DEVICE, 26);
SAME(GASPI_ERR_SN, 27);
SAME(GASPI_ERR_MEMALLOC, 28);
SAME(GASPI_OP_MIN, 0);
SAME(GASPI_OP_MAX, 1);
SAME(GASPI_OP_SUM, 2);
SAME(GASPI_TYPE_INT, 0);
SAME(GASPI_TYPE_UINT, 1);
SAME(GASPI_TYPE_FLOAT, 2);
SAME(GASPI_TYPE_DOUBLE, 3);
SAME(GASPI_TYPE_LONG, 4);
SAME(GASPI_TYPE_ULONG, 5);
SAME(GASPI_IB, 0);
SAME(GASPI_ROCE, 1);
SAME(GASPI_ETHERNET, 2);
SAME(GASPI_GEMINI, 3);
SAME(GASPI_ARIES, 4);
SAME(GASPI_OFI, 5);
SAME(GASPI_MEM_UNINITIALIZED, 0);
SAME(GASPI_ALLOC_DEFAULT, 0);
SAME(GASPI_MEM_INITIALIZED, 1);
SAME(GASPI_STATE_HEALTHY, 0);
SAME(GASPI_STATE_CORRUPT, 1);
SAME(GASPI_STATISTIC_ARGUMENT_NONE, 0);
SAME(GASPI_STATISTIC_ARGUMENT_RANK, 1);
SAME(GASPI_TOPOLOGY_NONE, 0);
SAME(GASPI_TOPOLOGY_STATIC, 1);
SAME(GASPI_TOPOLOGY_DYNAMIC, 2);

int main(void) {
  const int values = GASPI_BLOCK == 0xffffffffffffffffUL && GASPI_TEST == 0 && GASPI_GROUP_ALL == 0;
  return values ? 0 : 1;
}
