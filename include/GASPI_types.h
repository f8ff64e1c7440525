/*
 * GASPI_types.h: types and constants of GASPI.
 *
 * Sizes, layouts and numbers are those that existing programs were compiled with; a program and
 * the library only work together if both see them the same way, so nothing here ever changes.
 * Sizes are given for LP64 Linux (x86-64, aarch64).
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef GASPI_TYPES_H
#define GASPI_TYPES_H

#ifdef __cplusplus
extern "C" {
#endif

/* The plain C types, under the names that GASPI_TYPE_* of gaspi_allreduce refers to. */
typedef char gaspi_char;
typedef unsigned char gaspi_uchar;
typedef short gaspi_short;
typedef unsigned short gaspi_ushort;
typedef int gaspi_int;
typedef unsigned int gaspi_uint;
typedef long gaspi_long;
typedef unsigned long gaspi_ulong;
typedef float gaspi_float;
typedef double gaspi_double;

/** Milliseconds, or one of GASPI_BLOCK and GASPI_TEST. */
typedef gaspi_ulong gaspi_timeout_t;
/** Number of a process within its job, from 0. */
typedef gaspi_ushort gaspi_rank_t;
/** Number of a group of ranks. */
typedef gaspi_uchar gaspi_group_t;
/** A count of things that are not bytes. */
typedef gaspi_uint gaspi_number_t;
/** An address in this process. */
typedef void *gaspi_pointer_t;
/** State that gaspi_allreduce_user hands to its callback, untouched. */
typedef void *gaspi_reduce_state_t;
/** Number of a communication queue. */
typedef gaspi_uchar gaspi_queue_id_t;
/** A count of bytes. */
typedef gaspi_ulong gaspi_size_t;
/** Bytes from the start of a segment. */
typedef gaspi_ulong gaspi_offset_t;
/** Number of a segment. */
typedef gaspi_uchar gaspi_segment_id_t;
/** A text that ends with a zero byte. */
typedef char *gaspi_string_t;
/** Milliseconds. */
typedef gaspi_float gaspi_time_t;
/** What gaspi_atomic_* work on: 8 bytes. */
typedef gaspi_ulong gaspi_atomic_value_t;
/** Number of a notification within a segment. */
typedef gaspi_uint gaspi_notification_id_t;
/** Value of a notification; 0 means "not set". */
typedef gaspi_uint gaspi_notification_t;
/** Number of a statistic counter. */
typedef gaspi_uint gaspi_statistic_counter_t;
/** Ticks of the clock that gaspi_time_ticks reads. */
typedef gaspi_ulong gaspi_cycles_t;
/** Kind of memory that is bound to a segment; 0 is ordinary memory of this process. */
typedef gaspi_int gaspi_memory_description_t;

/** What a procedure returns. Texts: gaspi_error_str. Cause in words: gaspi_error_detail. */
typedef enum {
  GASPI_ERROR = -1,             /**< failed; gaspi_error_detail tells what and where */
  GASPI_SUCCESS = 0,            /**< done */
  GASPI_TIMEOUT = 1,            /**< not done yet; call again to continue */
  GASPI_ERR_EMFILE = 2,         /**< too many open files */
  GASPI_ERR_ENV = 3,            /**< environment variables of the job are wrong */
  GASPI_ERR_SN_PORT = 4,        /**< port invalid or in use */
  GASPI_ERR_CONFIG = 5,         /**< a field of gaspi_config_t is not accepted */
  GASPI_ERR_NOINIT = 6,         /**< call needs gaspi_proc_init first */
  GASPI_ERR_INITED = 7,         /**< call is not allowed after gaspi_proc_init */
  GASPI_ERR_NULLPTR = 8,        /**< a pointer argument is NULL */
  GASPI_ERR_INV_SEGSIZE = 9,    /**< size of a segment */
  GASPI_ERR_INV_SEG = 10,       /**< segment does not exist, exists already or is out of range */
  GASPI_ERR_INV_GROUP = 11,     /**< group does not exist or is not committed */
  GASPI_ERR_INV_RANK = 12,      /**< rank does not exist or may not be used here */
  GASPI_ERR_INV_QUEUE = 13,     /**< queue does not exist */
  GASPI_ERR_INV_LOC_OFF = 14,   /**< local offset is outside of the segment */
  GASPI_ERR_INV_REM_OFF = 15,   /**< remote offset is outside of the segment */
  GASPI_ERR_INV_COMMSIZE = 16,  /**< range leaves the segment or is too large for one call */
  GASPI_ERR_INV_NOTIF_VAL = 17, /**< notification value 0 */
  GASPI_ERR_INV_NOTIF_ID = 18,  /**< notification does not exist */
  GASPI_ERR_INV_NUM = 19,       /**< count is out of range */
  GASPI_ERR_INV_SIZE = 20,      /**< size is out of range */
  GASPI_ERR_MANY_SEG = 21,      /**< segment_max segments exist */
  GASPI_ERR_MANY_GRP = 22,      /**< group_max groups exist */
  GASPI_QUEUE_FULL = 23,        /**< no slot is free: gaspi_wait, then post again */
  GASPI_ERR_UNALIGN_OFF = 24,   /**< offset is not a multiple of 8 */
  GASPI_ERR_ACTIVE_COLL = 25,   /**< another collective of this group is not finished */
  GASPI_ERR_DEVICE = 26,        /**< the network device failed */
  GASPI_ERR_SN = 27,            /**< control connection failed */
  GASPI_ERR_MEMALLOC = 28       /**< memory could not be allocated */
} gaspi_return_t;

/** Operation of gaspi_allreduce, applied element by element. */
typedef enum {
  GASPI_OP_MIN = 0,
  GASPI_OP_MAX = 1,
  GASPI_OP_SUM = 2
} gaspi_operation_t;

/** Element type of gaspi_allreduce. */
typedef enum {
  GASPI_TYPE_INT = 0,
  GASPI_TYPE_UINT = 1,
  GASPI_TYPE_FLOAT = 2,
  GASPI_TYPE_DOUBLE = 3,
  GASPI_TYPE_LONG = 4,
  GASPI_TYPE_ULONG = 5
} gaspi_datatype_t;

/** Network between hosts. */
typedef enum {
  GASPI_IB = 0,
  GASPI_ROCE = 1,
  GASPI_ETHERNET = 2,
  GASPI_GEMINI = 3,
  GASPI_ARIES = 4,
  GASPI_OFI = 5
} gaspi_network_t;

/** How the memory of a new segment starts. */
typedef enum {
  GASPI_MEM_UNINITIALIZED = 0, /**< the first thread to touch a page places it */
  GASPI_ALLOC_DEFAULT = 0,
  GASPI_MEM_INITIALIZED = 1 /**< zeroed by, and placed near, the calling thread */
} gaspi_alloc_t;

/** Entry of the state vector. */
typedef enum {
  GASPI_STATE_HEALTHY = 0, /**< nothing went wrong with this rank */
  GASPI_STATE_CORRUPT = 1  /**< a request to this rank failed, or it died */
} gaspi_state_t;

/** One gaspi_state_t per rank; the caller owns the memory. */
typedef gaspi_state_t *gaspi_state_vector_t;

/** What the argument of a statistic counter means. */
typedef enum {
  GASPI_STATISTIC_ARGUMENT_NONE = 0, /**< the argument is ignored */
  GASPI_STATISTIC_ARGUMENT_RANK = 1  /**< the argument is a rank */
} gaspi_statistic_argument_t;

/** When the ranks connect to each other. */
typedef enum {
  GASPI_TOPOLOGY_NONE = 0,   /**< on first use; GASPI_GROUP_ALL does not exist */
  GASPI_TOPOLOGY_STATIC = 1, /**< what a barrier of all needs at gaspi_proc_init */
  GASPI_TOPOLOGY_DYNAMIC = 2 /**< on first use */
} gaspi_topology_t;

/**
 * Operation of gaspi_allreduce_user: combines `num` elements of `element_size` bytes at `one` and
 * `two` into `result`, which may be the same memory as one of them. It has to be associative and
 * commutative and returns GASPI_SUCCESS; anything else fails the reduction on all ranks.
 */
typedef gaspi_return_t (*gaspi_reduce_operation_t)(gaspi_pointer_t one, gaspi_pointer_t two,
                                                   gaspi_pointer_t result,
                                                   gaspi_reduce_state_t state, gaspi_number_t num,
                                                   gaspi_size_t element_size,
                                                   gaspi_timeout_t timeout);

/** Device part of gaspi_config_t. */
typedef struct {
  gaspi_network_t network_type; /**< network in use; ignored by gaspi_config_set */
  struct {
    struct {
      gaspi_int netdev_id;   /**< number of the device, -1: choose; at most 4 */
      gaspi_uint mtu;        /**< bytes: 1024, 2048, 4096, or 0 for the active one */
      gaspi_uint port_check; /**< 1: use active ports only; 0: one that is not may be chosen */
    } ib;                    /**< InfiniBand and RoCE */
    struct {
      gaspi_uint port; /**< ranks of other hosts connect to it, or to one of the next where a host
                            has several; 19000, 0 or above 65535: a free port.
                            GASPI_PORT_RANGE comes before it */
    } tcp;             /**< Ethernet */
    struct {
      gaspi_int use_shm;
      gaspi_int provider_info;
      gaspi_int progress_auto;
    } ofi;  /**< kept for the layout */
  } params; /**< per network; a structure, not a union */
} gaspi_dev_config_t;

/**
 * Configuration of a rank: filled by gaspi_config_get, passed by value to gaspi_config_set before
 * gaspi_proc_init. Sizes, counts and topology have to be the same on all ranks.
 */
typedef struct gaspi_config {
  gaspi_uint logger;             /**< 0: gaspi_printf prints nothing; default 1 */
  gaspi_uint sn_port;            /**< 1024 to 65536; kept for compatibility, free ports are used */
  gaspi_uint net_info;           /**< 1: gaspi_proc_init prints the transports in use */
  gaspi_uint user_net;           /**< output: 1 once `network` was chosen by the program */
  gaspi_int sn_persistent;       /**< kept for compatibility, no effect */
  gaspi_timeout_t sn_timeout;    /**< milliseconds; default 30000 */
  gaspi_dev_config_t dev_config; /**< device */
  gaspi_network_t network;       /**< GASPI_IB, GASPI_ROCE or GASPI_ETHERNET between hosts */
  gaspi_uint queue_size_max;     /**< requests per queue, 1 to 4096; default 1024 */
  gaspi_uint queue_num;          /**< queues at start, 1 to 16; default 8 */
  gaspi_number_t group_max;      /**< groups, 1 to 255; default 32 */
  gaspi_number_t segment_max;    /**< segments, 1 to 255; default 255 */
  gaspi_size_t transfer_size_max;           /**< bytes of one request, 1 to 2^30; default 2^30 */
  gaspi_number_t notification_num;          /**< per segment, 0 to 2^20; default 65536 */
  gaspi_number_t passive_queue_size_max;    /**< messages, 1 to 4096; default 1024 */
  gaspi_number_t passive_transfer_size_max; /**< bytes of a message, 1 to 65535; default 65535 */
  gaspi_size_t allreduce_buf_size;          /**< bytes; ignored, 8 * allreduce_elem_max holds */
  gaspi_number_t allreduce_elem_max;        /**< elements, 1 to 2^31; default 255 */
  gaspi_number_t rw_list_elem_max;          /**< entries of a list call, 1 to 255; default 255 */
  gaspi_topology_t build_infrastructure;    /**< when ranks connect; default STATIC */
  void *user_defined;                       /**< the program's own; gaspi_config_get returns it */
} gaspi_config_t;

/** The group of all ranks of the job. */
static const gaspi_group_t GASPI_GROUP_ALL = 0;

/** Timeout: wait until the procedure is done. */
static const gaspi_timeout_t GASPI_BLOCK = 0xffffffffffffffffUL;

/** Timeout: one attempt, no waiting. */
static const gaspi_timeout_t GASPI_TEST = 0;

#ifdef __cplusplus
}
#endif

#endif /* GASPI_TYPES_H */
