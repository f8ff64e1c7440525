/*
 * main.c: soak SCENARIO SEED VICTIM [FILE].
 *
 * All ranks draw from SEED what they do: writes, reads, atomics, passive messages, pings, barriers
 * and all-reduces. One of them suffers:
 *
 *  - die: the test kills rank VICTIM when all are ready.
 *  - exit: rank VICTIM ends by itself, without gaspi_proc_term, and says just before when that is.
 *  - threads: as die; two threads of each rank do collectives, each in a group of its own, and a
 *    third works with single ranks.
 *  - groups: as die, while all make and delete groups; see groups.c.
 *  - stop: VICTIM is stopped and continued until FILE is gone. Nothing but timeouts comes of it.
 *  - cut: rank VICTIM shuts down one of its TCP connections. Nobody is dead, and all go on.
 *  - fusion, fusion-exit, fusion-stop: as die, exit and stop, while all sum in fused buffers; see
 *    fusion.c.
 *  - busy, come-and-go: VICTIM is a number of seconds; see busy.c.
 */
#include "soak.h"

static int scenario_of(const char *name) {
  static const char *const names[] = {"die", "exit", "threads", "stop", "cut", "busy",
                                      "come-and-go", "groups", "fusion", "fusion-exit",
                                      "fusion-stop"};

  for (unsigned number = 0; number < sizeof names / sizeof names[0]; number++) {
    if (strcmp(name, names[number]) == 0) {
      scenario = (scenario_t)number;
      return 1;
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  worker_t *me = &workers[0];
  gaspi_pointer_t start = NULL;

  if (argc < 4 || !scenario_of(argv[1]) ||
      ((scenario == STOPPED || scenario == FUSION_STOP) && argc < 5)) {
    fprintf(stderr, "usage: soak die|exit|threads|groups|stop|cut|busy|come-and-go|fusion|"
                    "fusion-exit|fusion-stop SEED VICTIM [FILE]\n");
    return 2;
  }
  seed = strtoull(argv[2], NULL, 10);
  victim = (gaspi_rank_t)strtoul(argv[3], NULL, 10);
  setvbuf(stdout, NULL, _IOLBF, 0);
  watch();
  MUST(me, gaspi_proc_init(GUARD));
  MUST(me, gaspi_proc_rank(&my_rank));
  MUST(me, gaspi_proc_num(&ranks));
  if (ranks < 2 || ranks > RANKS_MAX) {
    give_up(me, "2 to %d ranks", RANKS_MAX);
  }
  MUST(me, gaspi_segment_create(SEGMENT, SEGMENT_BYTES, GASPI_GROUP_ALL, GUARD,
                                GASPI_MEM_INITIALIZED));
  MUST(me, gaspi_segment_ptr(SEGMENT, &start));
  segment = start;
  prepare_mix();
  switch (scenario) {
    case STOPPED:
      stop(argv[4]);
      break;
    case CUTTING:
      cut();
      break;
    case BUSY:
    case COME_AND_GO:
      busy(strtoull(argv[3], NULL, 10));
      break;
    case GROUPS:
      groups();
      break;
    case FUSION:
    case FUSION_EXIT:
      fuse();
      break;
    case FUSION_STOP:
      fuse_stopped(argv[4]);
      break;
    default:
      die();
  }
  return complaints() == 0 ? 0 : 1;
}
