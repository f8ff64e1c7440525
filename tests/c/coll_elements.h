/*
 * coll_elements.h: elements of all types of the collective operations, with values that every type
 * holds exactly, and what combining them has to give.
 */
#ifndef COLL_ELEMENTS_H
#define COLL_ELEMENTS_H

#include "check.h"

static const gaspi_coll_datatype_t all_types[] = {
    GASPI_COLL_TYPE_I8,  GASPI_COLL_TYPE_U8,  GASPI_COLL_TYPE_I16, GASPI_COLL_TYPE_U16,
    GASPI_COLL_TYPE_I32, GASPI_COLL_TYPE_U32, GASPI_COLL_TYPE_I64, GASPI_COLL_TYPE_U64,
    GASPI_COLL_TYPE_F16, GASPI_COLL_TYPE_BF16, GASPI_COLL_TYPE_F32, GASPI_COLL_TYPE_F64};

enum { TYPES = sizeof all_types / sizeof *all_types };

static inline int is_float(gaspi_coll_datatype_t type) { return type >= GASPI_COLL_TYPE_F16; }

static inline size_t size_of(gaspi_coll_datatype_t type) {
  switch (type) {
    case GASPI_COLL_TYPE_I8:
    case GASPI_COLL_TYPE_U8:
      return 1;
    case GASPI_COLL_TYPE_I16:
    case GASPI_COLL_TYPE_U16:
    case GASPI_COLL_TYPE_F16:
    case GASPI_COLL_TYPE_BF16:
      return 2;
    case GASPI_COLL_TYPE_I32:
    case GASPI_COLL_TYPE_U32:
    case GASPI_COLL_TYPE_F32:
      return 4;
    default:
      return 8;
  }
}

/* The bits of a small number, 0 to 256, as an element. */
static inline uint64_t encode(gaspi_coll_datatype_t type, unsigned value) {
  uint64_t bits = value;
  float single = (float)value;
  double twice = (double)value;
  uint32_t word = 0;

  memcpy(&word, &single, sizeof word);
  if (type == GASPI_COLL_TYPE_F32) {
    bits = word;
  } else if (type == GASPI_COLL_TYPE_BF16) {
    bits = word >> 16;
  } else if (type == GASPI_COLL_TYPE_F16) {
    /* Exponents are counted from 15 instead of 127, and 13 bits less are kept. */
    bits = value == 0 ? 0 : ((word >> 13) - ((127u - 15u) << 10)) & 0xffffu;
  } else if (type == GASPI_COLL_TYPE_F64) {
    memcpy(&bits, &twice, sizeof bits);
  } else if (size_of(type) < 8) {
    bits &= (1ull << (8 * size_of(type))) - 1;
  }
  return bits;
}

/* Element `at` of a buffer that may have any address. */
static inline void put(void *buffer, uint64_t at, gaspi_coll_datatype_t type, unsigned value) {
  const uint64_t bits = encode(type, value);
  memcpy((char *)buffer + at * size_of(type), &bits, size_of(type));
}

static inline int holds(const void *buffer, uint64_t at, gaspi_coll_datatype_t type,
                        unsigned value) {
  const uint64_t bits = encode(type, value);
  return memcmp((const char *)buffer + at * size_of(type), &bits, size_of(type)) == 0;
}

/* What member `member` of `size` contributes: results stay within 256, averages are whole. */
static inline unsigned value_of(gaspi_coll_op_t op, unsigned member, unsigned size, uint64_t at) {
  const unsigned mixed = (unsigned)((member * 7919u + at * 104729u + (at >> 7)) ^ (at / 3));
  switch (op) {
    case GASPI_COLL_OP_SUM:
      return mixed % 8;
    case GASPI_COLL_OP_PRODUCT:
      return 1 + mixed % 2;
    case GASPI_COLL_OP_AVERAGE:
      return size * (mixed % 2);
    default:
      return mixed % 128;
  }
}

/* What comes of the contributions of all. */
static inline unsigned combined_value(gaspi_coll_op_t op, unsigned size, uint64_t at) {
  unsigned result = value_of(op, 0, size, at);
  for (unsigned member = 1; member < size; member++) {
    const unsigned other = value_of(op, member, size, at);
    switch (op) {
      case GASPI_COLL_OP_PRODUCT:
        result *= other;
        break;
      case GASPI_COLL_OP_MIN:
        result = other < result ? other : result;
        break;
      case GASPI_COLL_OP_MAX:
        result = other > result ? other : result;
        break;
      case GASPI_COLL_OP_AND:
        result &= other;
        break;
      case GASPI_COLL_OP_OR:
        result |= other;
        break;
      case GASPI_COLL_OP_XOR:
        result ^= other;
        break;
      default:
        result += other;
    }
  }
  return op == GASPI_COLL_OP_AVERAGE ? result / size : result;
}

#endif /* COLL_ELEMENTS_H */
