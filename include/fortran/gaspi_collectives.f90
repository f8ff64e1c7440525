! gaspi_collectives.f90: the collective operations of gaspi_collectives.h for Fortran. Interfaces
! only; what each procedure does is said there. gaspi_error_detail is in gaspi_ext.
!
! Buffers, lists of counts and options are addresses: c_loc of a variable with the target attribute,
! or c_null_ptr. A function for gaspi_coll_op_create is bind(C): c_funloc of it.
!
! SPDX-License-Identifier: MIT OR Apache-2.0
module gaspi_collectives
  use gaspi_types
  implicit none
  public

  ! Kinds.
  integer, parameter :: gaspi_coll_count_t = c_int64_t
  integer, parameter :: gaspi_coll_request_t = c_int64_t
  integer, parameter :: gaspi_coll_op_t = c_int64_t
  integer, parameter :: gaspi_coll_datatype_t = c_int

  integer(gaspi_coll_request_t), parameter :: GASPI_COLL_REQUEST_NULL = 0

  ! Takes the place of a buffer in an operation in place.
  type(c_ptr), parameter :: GASPI_COLL_IN_PLACE = transfer(-1_c_intptr_t, c_null_ptr)

  ! Types of elements: gaspi_coll_datatype_t.
  enum, bind(C)
    enumerator :: GASPI_COLL_TYPE_I8 = 16
    enumerator :: GASPI_COLL_TYPE_U8 = 17
    enumerator :: GASPI_COLL_TYPE_I16 = 18
    enumerator :: GASPI_COLL_TYPE_U16 = 19
    enumerator :: GASPI_COLL_TYPE_I32 = 20
    enumerator :: GASPI_COLL_TYPE_U32 = 21
    enumerator :: GASPI_COLL_TYPE_I64 = 22
    enumerator :: GASPI_COLL_TYPE_U64 = 23
    enumerator :: GASPI_COLL_TYPE_F16 = 32
    enumerator :: GASPI_COLL_TYPE_BF16 = 33
    enumerator :: GASPI_COLL_TYPE_F32 = 34
    enumerator :: GASPI_COLL_TYPE_F64 = 35
    enumerator :: GASPI_COLL_TYPE_USER = 64
  end enum

  ! How elements are combined.
  integer(gaspi_coll_op_t), parameter :: GASPI_COLL_OP_SUM = 16
  integer(gaspi_coll_op_t), parameter :: GASPI_COLL_OP_PRODUCT = 17
  integer(gaspi_coll_op_t), parameter :: GASPI_COLL_OP_MIN = 18
  integer(gaspi_coll_op_t), parameter :: GASPI_COLL_OP_MAX = 19
  integer(gaspi_coll_op_t), parameter :: GASPI_COLL_OP_AND = 20
  integer(gaspi_coll_op_t), parameter :: GASPI_COLL_OP_OR = 21
  integer(gaspi_coll_op_t), parameter :: GASPI_COLL_OP_XOR = 22
  integer(gaspi_coll_op_t), parameter :: GASPI_COLL_OP_AVERAGE = 23

  ! Flags of gaspi_coll_op_create.
  integer(gaspi_uint), parameter :: GASPI_COLL_OP_ORDERED = 1
  integer(gaspi_uint), parameter :: GASPI_COLL_OP_BACKGROUND = 2

  ! What the bits of a result may depend on.
  integer(gaspi_uint), parameter :: GASPI_COLL_MODE_DEFAULT = 0
  integer(gaspi_uint), parameter :: GASPI_COLL_MODE_FAST = 1
  integer(gaspi_uint), parameter :: GASPI_COLL_MODE_STABLE = 2

  ! Options of an operation, with their initial values.
  type, bind(C) :: gaspi_coll_options_t
    integer(gaspi_size_t) :: size = 32
    type(c_ptr) :: algorithm = c_null_ptr
    integer(gaspi_uint) :: background = 0
    integer(gaspi_uint) :: reserved = 0
    integer(gaspi_uint) :: mode = GASPI_COLL_MODE_DEFAULT
    integer(gaspi_uint) :: reserved2 = 0
  end type gaspi_coll_options_t

  ! A piece of gaspi_coll_broadcast_list.
  type, bind(C) :: gaspi_coll_piece_t
    type(c_ptr) :: data = c_null_ptr
    integer(gaspi_coll_count_t) :: count = 0
    integer(gaspi_coll_datatype_t) :: datatype = GASPI_COLL_TYPE_F32
    integer(gaspi_uint) :: reserved = 0
  end type gaspi_coll_piece_t

  ! Fused buffers. A function for gaspi_fusion_on_end is bind(C): c_funloc of it.
  integer, parameter :: gaspi_fusion_t = c_int64_t

  type, bind(C) :: gaspi_fusion_tensor_t
    integer(gaspi_coll_count_t) :: count = 0
    integer(gaspi_coll_datatype_t) :: datatype = GASPI_COLL_TYPE_F32
    integer(gaspi_uint) :: reserved = 0
  end type gaspi_fusion_tensor_t

  ! The order in which tensors are put into buckets.
  integer(gaspi_uint), parameter :: GASPI_FUSION_DECLARED = 0
  integer(gaspi_uint), parameter :: GASPI_FUSION_REVERSE = 1

  ! Options of a fused buffer, with their initial values.
  type, bind(C) :: gaspi_fusion_options_t
    integer(gaspi_size_t) :: size = 64
    integer(gaspi_coll_op_t) :: op = GASPI_COLL_OP_SUM
    integer(gaspi_size_t) :: threshold = 32768
    integer(gaspi_size_t) :: limit = 0
    type(c_ptr) :: algorithm = c_null_ptr
    integer(gaspi_uint) :: order = GASPI_FUSION_DECLARED
    integer(gaspi_uint) :: contributions = 1
    integer(gaspi_uint) :: wire = 0
    integer(gaspi_uint) :: background = 1
    integer(gaspi_uint) :: mode = GASPI_COLL_MODE_DEFAULT
    integer(gaspi_uint) :: reserved = 0
  end type gaspi_fusion_options_t

  interface
    function gaspi_coll_allreduce(send, receive, count, datatype, op, group, options, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_coll_op_t), value :: op
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_allreduce

    function gaspi_coll_allreduce_start(send, receive, count, datatype, op, group, options, &
        request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_coll_op_t), value :: op
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_allreduce_start

    function gaspi_coll_allreduce_init(send, receive, count, datatype, op, group, options, &
        request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_coll_op_t), value :: op
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_allreduce_init

    function gaspi_coll_reduce(send, receive, count, datatype, op, root, group, options, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_coll_op_t), value :: op
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_reduce

    function gaspi_coll_reduce_start(send, receive, count, datatype, op, root, group, options, &
        request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_coll_op_t), value :: op
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_reduce_start

    function gaspi_coll_reduce_init(send, receive, count, datatype, op, root, group, options, &
        request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_coll_op_t), value :: op
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_reduce_init

    function gaspi_coll_broadcast(send, receive, count, datatype, root, group, options, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_broadcast

    function gaspi_coll_broadcast_start(send, receive, count, datatype, root, group, options, &
        request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_broadcast_start

    function gaspi_coll_broadcast_init(send, receive, count, datatype, root, group, options, &
        request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_broadcast_init

    function gaspi_coll_broadcast_list(pieces, num, root, group, options, &
        timeout) bind(C) result(code)
      import
      type(gaspi_coll_piece_t), intent(in) :: pieces(*)
      integer(gaspi_size_t), value :: num
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_broadcast_list

    function gaspi_coll_broadcast_list_start(pieces, num, root, group, options, &
        request, timeout) bind(C) result(code)
      import
      type(gaspi_coll_piece_t), intent(in) :: pieces(*)
      integer(gaspi_size_t), value :: num
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_broadcast_list_start

    function gaspi_coll_reduce_scatter(send, receive, count, datatype, op, group, options, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_coll_op_t), value :: op
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_reduce_scatter

    function gaspi_coll_reduce_scatter_start(send, receive, count, datatype, op, group, options, &
        request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_coll_op_t), value :: op
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_reduce_scatter_start

    function gaspi_coll_reduce_scatter_init(send, receive, count, datatype, op, group, options, &
        request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_coll_op_t), value :: op
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_reduce_scatter_init

    function gaspi_coll_allgather(send, receive, count, datatype, group, options, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_allgather

    function gaspi_coll_allgather_start(send, receive, count, datatype, group, options, request, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_allgather_start

    function gaspi_coll_allgather_init(send, receive, count, datatype, group, options, request, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_allgather_init

    function gaspi_coll_allgatherv(send, receive, counts, displacements, datatype, group, &
        options, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive, counts, displacements
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_allgatherv

    function gaspi_coll_allgatherv_start(send, receive, counts, displacements, datatype, group, &
        options, request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive, counts, displacements
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_allgatherv_start

    function gaspi_coll_allgatherv_init(send, receive, counts, displacements, datatype, group, &
        options, request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive, counts, displacements
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_allgatherv_init

    function gaspi_coll_gather(send, receive, count, datatype, root, group, options, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_gather

    function gaspi_coll_gather_start(send, receive, count, datatype, root, group, options, &
        request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_gather_start

    function gaspi_coll_gather_init(send, receive, count, datatype, root, group, options, &
        request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_gather_init

    function gaspi_coll_scatter(send, receive, count, datatype, root, group, options, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_scatter

    function gaspi_coll_scatter_start(send, receive, count, datatype, root, group, options, &
        request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_scatter_start

    function gaspi_coll_scatter_init(send, receive, count, datatype, root, group, options, &
        request, timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_rank_t), value :: root
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_scatter_init

    function gaspi_coll_alltoall(send, receive, count, datatype, group, options, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_alltoall

    function gaspi_coll_alltoall_start(send, receive, count, datatype, group, options, request, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_alltoall_start

    function gaspi_coll_alltoall_init(send, receive, count, datatype, group, options, request, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, receive
      integer(gaspi_coll_count_t), value :: count
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_alltoall_init

    function gaspi_coll_alltoallv(send, send_counts, send_displacements, receive, &
        receive_counts, receive_displacements, datatype, group, options, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, send_counts, send_displacements, receive, receive_counts, receive_displacements
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_alltoallv

    function gaspi_coll_alltoallv_start(send, send_counts, send_displacements, receive, &
        receive_counts, receive_displacements, datatype, group, options, request, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, send_counts, send_displacements, receive, receive_counts, receive_displacements
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_alltoallv_start

    function gaspi_coll_alltoallv_init(send, send_counts, send_displacements, receive, &
        receive_counts, receive_displacements, datatype, group, options, request, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: send, send_counts, send_displacements, receive, receive_counts, receive_displacements
      integer(gaspi_coll_datatype_t), value :: datatype
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_alltoallv_init

    function gaspi_coll_barrier(group, options, timeout) bind(C) result(code)
      import
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_barrier

    function gaspi_coll_barrier_start(group, options, request, timeout) bind(C) result(code)
      import
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_barrier_start

    function gaspi_coll_barrier_init(group, options, request, timeout) bind(C) result(code)
      import
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_coll_request_t), intent(out) :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_barrier_init

    function gaspi_coll_start(request) bind(C) result(code)
      import
      integer(gaspi_coll_request_t), value :: request
      integer(gaspi_return_t) :: code
    end function gaspi_coll_start

    function gaspi_coll_test(request, done) bind(C) result(code)
      import
      integer(gaspi_coll_request_t), value :: request
      integer(gaspi_int), intent(out) :: done
      integer(gaspi_return_t) :: code
    end function gaspi_coll_test

    function gaspi_coll_wait(request, timeout) bind(C) result(code)
      import
      integer(gaspi_coll_request_t), value :: request
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_wait

    function gaspi_coll_wait_all(num, requests, timeout) bind(C) result(code)
      import
      integer(gaspi_size_t), value :: num
      integer(gaspi_coll_request_t), intent(inout) :: requests(*)
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_coll_wait_all

    function gaspi_coll_free(request) bind(C) result(code)
      import
      integer(gaspi_coll_request_t), value :: request
      integer(gaspi_return_t) :: code
    end function gaspi_coll_free

    function gaspi_coll_op_create(reduction, state, element_size, flags, &
        op) bind(C) result(code)
      import
      type(c_funptr), value :: reduction
      type(c_ptr), value :: state
      integer(gaspi_size_t), value :: element_size
      integer(gaspi_uint), value :: flags
      integer(gaspi_coll_op_t), intent(out) :: op
      integer(gaspi_return_t) :: code
    end function gaspi_coll_op_create

    function gaspi_coll_op_free(op) bind(C) result(code)
      import
      integer(gaspi_coll_op_t), value :: op
      integer(gaspi_return_t) :: code
    end function gaspi_coll_op_free

    function gaspi_coll_algorithms(operation, names, size) bind(C) result(code)
      import
      type(c_ptr), value :: operation, names
      integer(gaspi_size_t), value :: size
      integer(gaspi_return_t) :: code
    end function gaspi_coll_algorithms

    function gaspi_fusion_create(tensors, num, group, options, fusion, &
        timeout) bind(C) result(code)
      import
      type(c_ptr), value :: tensors
      integer(gaspi_size_t), value :: num
      integer(gaspi_group_t), value :: group
      type(c_ptr), value :: options
      integer(gaspi_fusion_t), intent(out) :: fusion
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_fusion_create

    function gaspi_fusion_submit(fusion, tensor, data, scale) bind(C) result(code)
      import
      integer(gaspi_fusion_t), value :: fusion
      integer(gaspi_size_t), value :: tensor
      type(c_ptr), value :: data
      real(c_double), value :: scale
      integer(gaspi_return_t) :: code
    end function gaspi_fusion_submit

    function gaspi_fusion_test(fusion, tensor, sum, done) bind(C) result(code)
      import
      integer(gaspi_fusion_t), value :: fusion
      integer(gaspi_size_t), value :: tensor
      type(c_ptr), value :: sum
      integer(gaspi_int), intent(out) :: done
      integer(gaspi_return_t) :: code
    end function gaspi_fusion_test

    function gaspi_fusion_wait(fusion, tensor, sum, timeout) bind(C) result(code)
      import
      integer(gaspi_fusion_t), value :: fusion
      integer(gaspi_size_t), value :: tensor
      type(c_ptr), value :: sum
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_fusion_wait

    function gaspi_fusion_result(fusion, tensor, sum, timeout) bind(C) result(code)
      import
      integer(gaspi_fusion_t), value :: fusion
      integer(gaspi_size_t), value :: tensor
      type(c_ptr), intent(out) :: sum
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_fusion_result

    function gaspi_fusion_release(fusion, tensor, sum) bind(C) result(code)
      import
      integer(gaspi_fusion_t), value :: fusion
      integer(gaspi_size_t), value :: tensor
      type(c_ptr), value :: sum
      integer(gaspi_return_t) :: code
    end function gaspi_fusion_release

    function gaspi_fusion_tensor_ptr(fusion, tensor, pointer) bind(C) result(code)
      import
      integer(gaspi_fusion_t), value :: fusion
      integer(gaspi_size_t), value :: tensor
      type(c_ptr), intent(out) :: pointer
      integer(gaspi_return_t) :: code
    end function gaspi_fusion_tensor_ptr

    function gaspi_fusion_next(fusion, bucket, timeout) bind(C) result(code)
      import
      integer(gaspi_fusion_t), value :: fusion
      integer(gaspi_size_t), intent(out) :: bucket
      integer(gaspi_timeout_t), value :: timeout
      integer(gaspi_return_t) :: code
    end function gaspi_fusion_next

    function gaspi_fusion_on_end(fusion, told, state) bind(C) result(code)
      import
      integer(gaspi_fusion_t), value :: fusion
      type(c_funptr), value :: told
      type(c_ptr), value :: state
      integer(gaspi_return_t) :: code
    end function gaspi_fusion_on_end

    function gaspi_fusion_fd(fusion, fd) bind(C) result(code)
      import
      integer(gaspi_fusion_t), value :: fusion
      integer(c_int), intent(out) :: fd
      integer(gaspi_return_t) :: code
    end function gaspi_fusion_fd

    function gaspi_fusion_buckets(fusion, num) bind(C) result(code)
      import
      integer(gaspi_fusion_t), value :: fusion
      integer(gaspi_size_t), intent(out) :: num
      integer(gaspi_return_t) :: code
    end function gaspi_fusion_buckets

    function gaspi_fusion_bucket(fusion, tensor, bucket) bind(C) result(code)
      import
      integer(gaspi_fusion_t), value :: fusion
      integer(gaspi_size_t), value :: tensor
      integer(gaspi_size_t), intent(out) :: bucket
      integer(gaspi_return_t) :: code
    end function gaspi_fusion_bucket

    function gaspi_fusion_free(fusion) bind(C) result(code)
      import
      integer(gaspi_fusion_t), value :: fusion
      integer(gaspi_return_t) :: code
    end function gaspi_fusion_free
  end interface
end module gaspi_collectives
