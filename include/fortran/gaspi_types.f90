! gaspi_types.f90: kinds, constants and the configuration type of GASPI for Fortran.
!
! Compile gaspi_types.f90, gaspi.f90, gaspi_ext.f90 and, if used, gaspi_collectives.f90, in this
! order, with the compiler of the program; they contain interfaces only. What each thing means is said in GASPI_types.h.
!
! Fortran has no unsigned integers: a value beyond the positive half of its kind shows as negative
! (GASPI_BLOCK is -1; rank 40000 is -25536) and means the same to the library.
!
! A program that uses procedures of iso_c_binding itself says so: gfortran 12 crashes on some of
! them if they come through another module.
!
! SPDX-License-Identifier: MIT OR Apache-2.0
module gaspi_types
  use, intrinsic :: iso_c_binding
  implicit none
  public

  ! Kinds.
  integer, parameter :: gaspi_char = c_signed_char
  integer, parameter :: gaspi_uchar = c_signed_char
  integer, parameter :: gaspi_short = c_short
  integer, parameter :: gaspi_ushort = c_short
  integer, parameter :: gaspi_int = c_int
  integer, parameter :: gaspi_uint = c_int
  integer, parameter :: gaspi_long = c_long
  integer, parameter :: gaspi_ulong = c_long
  integer, parameter :: gaspi_float = c_float
  integer, parameter :: gaspi_double = c_double
  integer, parameter :: gaspi_timeout_t = c_long
  integer, parameter :: gaspi_rank_t = c_short
  integer, parameter :: gaspi_group_t = c_signed_char
  integer, parameter :: gaspi_number_t = c_int
  integer, parameter :: gaspi_queue_id_t = c_signed_char
  integer, parameter :: gaspi_size_t = c_long
  integer, parameter :: gaspi_offset_t = c_long
  integer, parameter :: gaspi_segment_id_t = c_signed_char
  integer, parameter :: gaspi_time_t = c_float
  integer, parameter :: gaspi_atomic_value_t = c_long
  integer, parameter :: gaspi_notification_id_t = c_int
  integer, parameter :: gaspi_notification_t = c_int
  integer, parameter :: gaspi_statistic_counter_t = c_int
  integer, parameter :: gaspi_cycles_t = c_long
  integer, parameter :: gaspi_memory_description_t = c_int
  integer, parameter :: gaspi_return_t = c_int
  integer, parameter :: gaspi_operation_t = c_int
  integer, parameter :: gaspi_datatype_t = c_int
  integer, parameter :: gaspi_network_t = c_int
  integer, parameter :: gaspi_alloc_t = c_int
  integer, parameter :: gaspi_state_t = c_int
  integer, parameter :: gaspi_statistic_argument_t = c_int
  integer, parameter :: gaspi_topology_t = c_int

  integer(gaspi_group_t), parameter :: GASPI_GROUP_ALL = 0_gaspi_group_t
  integer(gaspi_timeout_t), parameter :: GASPI_BLOCK = -1_gaspi_timeout_t
  integer(gaspi_timeout_t), parameter :: GASPI_TEST = 0_gaspi_timeout_t

  ! Return codes: gaspi_return_t.
  enum, bind(C)
    enumerator :: GASPI_ERROR = -1
    enumerator :: GASPI_SUCCESS = 0
    enumerator :: GASPI_TIMEOUT = 1
    enumerator :: GASPI_ERR_EMFILE = 2
    enumerator :: GASPI_ERR_ENV = 3
    enumerator :: GASPI_ERR_SN_PORT = 4
    enumerator :: GASPI_ERR_CONFIG = 5
    enumerator :: GASPI_ERR_NOINIT = 6
    enumerator :: GASPI_ERR_INITED = 7
    enumerator :: GASPI_ERR_NULLPTR = 8
    enumerator :: GASPI_ERR_INV_SEGSIZE = 9
    enumerator :: GASPI_ERR_INV_SEG = 10
    enumerator :: GASPI_ERR_INV_GROUP = 11
    enumerator :: GASPI_ERR_INV_RANK = 12
    enumerator :: GASPI_ERR_INV_QUEUE = 13
    enumerator :: GASPI_ERR_INV_LOC_OFF = 14
    enumerator :: GASPI_ERR_INV_REM_OFF = 15
    enumerator :: GASPI_ERR_INV_COMMSIZE = 16
    enumerator :: GASPI_ERR_INV_NOTIF_VAL = 17
    enumerator :: GASPI_ERR_INV_NOTIF_ID = 18
    enumerator :: GASPI_ERR_INV_NUM = 19
    enumerator :: GASPI_ERR_INV_SIZE = 20
    enumerator :: GASPI_ERR_MANY_SEG = 21
    enumerator :: GASPI_ERR_MANY_GRP = 22
    enumerator :: GASPI_QUEUE_FULL = 23
    enumerator :: GASPI_ERR_UNALIGN_OFF = 24
    enumerator :: GASPI_ERR_ACTIVE_COLL = 25
    enumerator :: GASPI_ERR_DEVICE = 26
    enumerator :: GASPI_ERR_SN = 27
    enumerator :: GASPI_ERR_MEMALLOC = 28
  end enum

  ! Operations of gaspi_allreduce.
  enum, bind(C)
    enumerator :: GASPI_OP_MIN = 0
    enumerator :: GASPI_OP_MAX = 1
    enumerator :: GASPI_OP_SUM = 2
  end enum

  ! Element types of gaspi_allreduce: integer(c_int), c_long, real(c_float), real(c_double).
  enum, bind(C)
    enumerator :: GASPI_TYPE_INT = 0
    enumerator :: GASPI_TYPE_UINT = 1
    enumerator :: GASPI_TYPE_FLOAT = 2
    enumerator :: GASPI_TYPE_DOUBLE = 3
    enumerator :: GASPI_TYPE_LONG = 4
    enumerator :: GASPI_TYPE_ULONG = 5
  end enum

  ! Networks.
  enum, bind(C)
    enumerator :: GASPI_IB = 0
    enumerator :: GASPI_ROCE = 1
    enumerator :: GASPI_ETHERNET = 2
    enumerator :: GASPI_GEMINI = 3
    enumerator :: GASPI_ARIES = 4
    enumerator :: GASPI_OFI = 5
  end enum

  ! Allocation policies.
  enum, bind(C)
    enumerator :: GASPI_MEM_UNINITIALIZED = 0
    enumerator :: GASPI_ALLOC_DEFAULT = 0
    enumerator :: GASPI_MEM_INITIALIZED = 1
  end enum

  ! States of ranks.
  enum, bind(C)
    enumerator :: GASPI_STATE_HEALTHY = 0
    enumerator :: GASPI_STATE_CORRUPT = 1
  end enum

  ! Meanings of the argument of a statistic counter.
  enum, bind(C)
    enumerator :: GASPI_STATISTIC_ARGUMENT_NONE = 0
    enumerator :: GASPI_STATISTIC_ARGUMENT_RANK = 1
  end enum

  ! When ranks connect.
  enum, bind(C)
    enumerator :: GASPI_TOPOLOGY_NONE = 0
    enumerator :: GASPI_TOPOLOGY_STATIC = 1
    enumerator :: GASPI_TOPOLOGY_DYNAMIC = 2
  end enum

  type, bind(C) :: gaspi_ib_params_t
    integer(gaspi_int) :: netdev_id
    integer(gaspi_uint) :: mtu
    integer(gaspi_uint) :: port_check
  end type gaspi_ib_params_t

  type, bind(C) :: gaspi_tcp_params_t
    integer(gaspi_uint) :: port
  end type gaspi_tcp_params_t

  type, bind(C) :: gaspi_ofi_params_t
    integer(gaspi_int) :: use_shm
    integer(gaspi_int) :: provider_info
    integer(gaspi_int) :: progress_auto
  end type gaspi_ofi_params_t

  type, bind(C) :: gaspi_dev_params_t
    type(gaspi_ib_params_t) :: ib
    type(gaspi_tcp_params_t) :: tcp
    type(gaspi_ofi_params_t) :: ofi
  end type gaspi_dev_params_t

  type, bind(C) :: gaspi_dev_config_t
    integer(gaspi_network_t) :: network_type
    type(gaspi_dev_params_t) :: params
  end type gaspi_dev_config_t

  ! All 144 bytes of the C structure.
  type, bind(C) :: gaspi_config_t
    integer(gaspi_uint) :: logger
    integer(gaspi_uint) :: sn_port
    integer(gaspi_uint) :: net_info
    integer(gaspi_uint) :: user_net
    integer(gaspi_int) :: sn_persistent
    integer(gaspi_timeout_t) :: sn_timeout
    type(gaspi_dev_config_t) :: dev_config
    integer(gaspi_network_t) :: network
    integer(gaspi_uint) :: queue_size_max
    integer(gaspi_uint) :: queue_num
    integer(gaspi_number_t) :: group_max
    integer(gaspi_number_t) :: segment_max
    integer(gaspi_size_t) :: transfer_size_max
    integer(gaspi_number_t) :: notification_num
    integer(gaspi_number_t) :: passive_queue_size_max
    integer(gaspi_number_t) :: passive_transfer_size_max
    integer(gaspi_size_t) :: allreduce_buf_size
    integer(gaspi_number_t) :: allreduce_elem_max
    integer(gaspi_number_t) :: rw_list_elem_max
    integer(gaspi_topology_t) :: build_infrastructure
    type(c_ptr) :: user_defined
  end type gaspi_config_t
end module gaspi_types
