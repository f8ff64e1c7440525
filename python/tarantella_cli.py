"""The command `tarantella`: starts a training script on one rank for each device, by gaspi_run.

It imports neither the package nor TensorFlow, and modules of Python's library that take long to
load only where they are needed. What is to be done is worked out first (`Plan`); then this process
becomes gaspi_run, which looks after the ranks, so signals, exit status and standard input are its
own.
"""

import os
import re
import sys

from tarantella_hosts import (
    BadUse,
    find_tool,
    joined,
    probe,
    read_hosts,
    usable_cores,
    visible_gpus,
)

VERSION = "0.1.0"
PROGRAM = "tarantella"
BAD_USE = 2
LAST_LINES = 20
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
SCRIPT_VARIABLE = "TNT_SCRIPT"

USAGE = """\
usage: tarantella [OPTIONS] [--] SCRIPT [ARGUMENTS...]
       tarantella --cleanup [--force] [--hostfile FILE] [-- SCRIPT]

Trains the Keras model of SCRIPT on several ranks: on one for each GPU of this host, or on one on
its CPU.

Ranks and hosts:
  -n N                       N ranks on this host; with --hostfile in all, filled host by host
  --hostfile FILE            hosts, one in each line; # begins a comment (also -m, --machinefile)
  --n-per-node N             ranks on each host (also --npernode, --devices-per-node, --ngpus,
                             -ngpus)
  --no-gpu                   use CPUs only (also --no-gpus, -no-gpu, -no-gpus)
  --pin-to-socket            bind rank R of a host to the cores of NUMA node R modulo their number
  --pin-memory-to-socket     take its memory from that node

Script:
  --python-interpreter S     run SCRIPT by S instead of this Python; "" runs SCRIPT as a program
  --working-directory DIR    run in DIR, which exists on all hosts (also --wd); default: here
  -x NAME=VALUE...           set variables for all ranks

Output:
  --log-level LEVEL          DEBUG, INFO, WARNING (default) or ERROR
  --log-on-all-devices       log on all ranks, not only on rank 0
  --output-on-all-devices    print what Keras prints on all ranks, not only on rank 0
  --output-dir DIR           write each rank's output to DIR/rank-R.out and .err; rank 0 also here
  --tag-output               begin each line with [rank R]

Training:
  --fusion-threshold KB      least size of a bucket of gradients; 0: no fusion; default: 32
  --on-failure end|continue  when a rank dies: end the job (default), or go on with the others
  --min-ranks N              with continue: end when fewer than N ranks are left; default: 1

Other:
  --dry-run                  print hosts, ranks, devices, environment and command; start nothing
  --cleanup                  end this user's jobs that tarantella started, or of those what runs
                             SCRIPT
  --force                    with --cleanup: kill at once
  --version                  print the version
  -h, --help                 print this

Options take their values behind a blank or "=". They end at -- or at the first word that is none.
What follows -- and begins with "-" goes to the interpreter: tarantella -n 2 -- -m package.train

The exit status is 0 if all ranks end with 0, else that of the first rank that failed (128 + signal
if a signal killed it, so 130 after Ctrl-C); 2 for a wrong command line. With --on-failure=continue
it is 0 if the ranks that are left end with 0.

Examples:
  tarantella model.py --epochs 3           a rank for each GPU of this host
  tarantella -n 4 --no-gpu model.py        four ranks on CPUs
  tarantella --hostfile hosts --n-per-node 4 -- model.py
  GASPI_SSH="ssh -p 2222" tarantella --hostfile hosts model.py
"""

# Each option with all its names; a value, words NAME=VALUE, or nothing follows.
VALUE, WORDS, FLAG = "value", "words", "flag"
OPTIONS = (
    ("ranks", VALUE, ("-n",)),
    ("hostfile", VALUE, ("--hostfile", "--machinefile", "-m", "-hostfile")),
    (
        "per_node",
        VALUE,
        ("--n-per-node", "--npernode", "--devices-per-node", "--ngpus", "-npernode", "-ngpus"),
    ),
    ("no_gpu", FLAG, ("--no-gpu", "--no-gpus", "-no-gpu", "-no-gpus")),
    ("log_level", VALUE, ("--log-level",)),
    ("log_all", FLAG, ("--log-on-all-devices",)),
    ("output_all", FLAG, ("--output-on-all-devices",)),
    ("output_dir", VALUE, ("--output-dir",)),
    ("tag", FLAG, ("--tag-output",)),
    ("directory", VALUE, ("--working-directory", "--wd")),
    ("variables", WORDS, ("-x",)),
    ("threshold", VALUE, ("--fusion-threshold",)),
    ("pin", FLAG, ("--pin-to-socket",)),
    ("pin_memory", FLAG, ("--pin-memory-to-socket",)),
    ("interpreter", VALUE, ("--python-interpreter",)),
    ("cleanup", FLAG, ("--cleanup",)),
    ("force", FLAG, ("--force",)),
    ("on_failure", VALUE, ("--on-failure",)),
    ("min_ranks", VALUE, ("--min-ranks",)),
    ("dry_run", FLAG, ("--dry-run",)),
    ("version", FLAG, ("--version",)),
    ("help", FLAG, ("--help", "-h")),
)
NAMES = {name: (key, kind) for key, kind, names in OPTIONS for name in names}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")


def log(level, text):
    """A line of the logger TNT_CLI, whose level the options choose."""
    import logging

    logger = logging.getLogger("TNT_CLI")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[%(name)s] %(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    logger.setLevel(_level)
    logger.log(getattr(logging, level), text)


_level = "WARNING"


# The command line.


def parse(words):
    """Options as a dict, and the words that follow them."""
    options = {}
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return options, words[at + 1 :]
        if not word.startswith("-") or word == "-":
            break
        at += 1
        name, equals, value = word.partition("=")
        if name not in NAMES and re.match(r"-n\d", word):
            # As in -n4.
            name, equals, value = "-n", "=", word[2:]
        if name not in NAMES:
            raise BadUse(unknown(name))
        key, kind = NAMES[name]
        if kind == FLAG:
            if equals:
                raise BadUse("{} takes no value; leave out ={}".format(name, value))
            options[key] = True
        elif kind == VALUE:
            if not equals:
                if at == len(words) or words[at] == "--":
                    raise BadUse("{} needs a value; see tarantella --help".format(name))
                value = words[at]
                at += 1
            if key in options and options[key] != value:
                raise BadUse("{} is given twice, as {} and {}".format(name, options[key], value))
            options[key] = value
        else:
            given = [value] if equals else []
            while at < len(words) and _VARIABLE.match(words[at]) and (given or not equals):
                given.append(words[at])
                at += 1
            wrong = [each for each in given if not _VARIABLE.match(each)]
            if wrong or not given:
                what = (
                    repr(wrong[0]) if wrong else "nothing" if at == len(words) else repr(words[at])
                )
                raise BadUse("-x needs NAME=VALUE, not {}".format(what))
            options.setdefault(key, []).extend(given)
    return options, words[at:]


def unknown(name):
    """What to say of an option that there is not, with the nearest one."""
    import difflib

    near = difflib.get_close_matches(name, NAMES, 1, 0.5)
    hint = "did you mean {}?".format(near[0]) if near else "see tarantella --help"
    return "unknown option {}; {}".format(name, hint)


def whole(name, text, least):
    """The number that a text says."""
    try:
        number = int(text)
    except ValueError:
        raise BadUse("{} {}: not a whole number".format(name, text)) from None
    if number < least:
        raise BadUse("{} {}: has to be at least {}".format(name, text, least))
    return number


def truth(name, text):
    """What a variable of the environment says, if it is set."""
    word = (text or "").strip().lower()
    if word in _TRUE + _FALSE + ("",):
        return word in _TRUE
    raise BadUse(
        "{}={!r} is neither true nor false; use true or false, 1 or 0, yes or no".format(name, text)
    )


# What is to be done.


class Plan:
    """Hosts with their numbers of ranks, devices, environment, and the command of gaspi_run."""

    def __init__(self, options, words):
        self.options = options
        self.directory = os.path.abspath(options.get("directory", os.getcwd()))
        self.interpreter = self.words_of_interpreter()
        self.command = self.words_of_ranks(words)
        self.output = self.output_directory()
        hostfile = options.get("hostfile")
        self.hosts = read_hosts(hostfile) if hostfile is not None else None
        self.gpus = []
        self.cores = usable_cores()
        self.counts = self.ranks_of_hosts()
        self.devices = self.devices_of_ranks()
        self.variables = self.environment()

    def words_of_interpreter(self):
        named = self.options.get("interpreter")
        if named is None:
            return [sys.executable or "python3"]
        import shlex

        try:
            words = shlex.split(named)
        except ValueError as error:
            raise BadUse("--python-interpreter {!r}: {}".format(named, error)) from None
        import shutil

        if words and shutil.which(words[0]) is None:
            raise BadUse(
                "--python-interpreter {}: there is no program of that name".format(words[0])
            )
        return words

    def words_of_ranks(self, words):
        if not words:
            raise BadUse("there is no SCRIPT; see tarantella --help")
        if not os.path.isdir(self.directory):
            raise BadUse(
                "--working-directory {}: there is no such directory".format(self.directory)
            )
        script = words[0]
        if script == "-":
            raise BadUse("the script cannot come from standard input, which is that of rank 0")
        self.script = os.path.join(self.directory, script)
        if self.interpreter and script.startswith("-"):
            # Options of the interpreter, such as -m MODULE.
            self.script = None
        elif not os.path.exists(self.script):
            raise BadUse(
                "there is no script {}; give its path relative to {}, or set"
                " --working-directory".format(script, self.directory)
            )
        elif os.path.isdir(self.script) and not self.interpreter:
            raise BadUse("{} is a directory".format(script))
        elif not self.interpreter:
            if not os.access(self.script, os.X_OK):
                raise BadUse(
                    "{} is no program: make it executable with chmod +x, or leave out "
                    "--python-interpreter".format(script)
                )
            words = [self.script] + words[1:]
        return self.interpreter + words

    def output_directory(self):
        """Where gaspi_run writes a file for each rank; it may make the folder. None: nowhere."""
        named = self.options.get("output_dir")
        if named is None:
            return None
        place = directory = os.path.abspath(named)
        while not os.path.lexists(place):
            place = os.path.dirname(place)
        if not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK):
            raise BadUse(
                "--output-dir {}: {} is no directory that can be written to; name another".format(
                    named, place
                )
            )
        return directory

    def ranks_of_hosts(self):
        """Pairs of host and number of ranks."""
        options = self.options
        ranks = whole("-n", options["ranks"], 1) if "ranks" in options else None
        each = whole("--n-per-node", options["per_node"], 1) if "per_node" in options else None
        if each is None and os.environ.get("TNT_GPUS_PER_NODE", "").strip() not in ("", "0"):
            each = whole("TNT_GPUS_PER_NODE", os.environ["TNT_GPUS_PER_NODE"].strip(), 1)
            if ranks is not None and self.hosts is None:
                each = None
        found = self.look_at_hosts(each)
        names = self.hosts or [None]
        if ranks is None:
            counts = [each or gpus or 1 for gpus in found]
            if each is None and 0 in found and not options.get("no_gpu"):
                where = (
                    "this host"
                    if self.hosts is None
                    else ", ".join(name for name, gpus in zip(names, found) if not gpus)
                )
                log(
                    "WARNING",
                    "no GPU was found on {}: one rank on the CPU; give the number of ranks by -n or"
                    " --n-per-node, or say --no-gpu".format(where),
                )
            return self.checked(list(zip(names, counts)), found)
        room = [each] * len(names) if each else list(found)
        if each is None and ranks > sum(room):
            room = [-(-ranks // len(names))] * len(names)
        if ranks > sum(room):
            raise BadUse(
                "-n {} is more than {} hosts have room for with --n-per-node {}: at most {}".format(
                    ranks, len(names), each, sum(room)
                )
            )
        counts = []
        for name, free in zip(names, room):
            counts.append((name, min(free, ranks)))
            ranks -= counts[-1][1]
        used = [(pair, gpus) for pair, gpus in zip(counts, found) if pair[1]]
        return self.checked([pair for pair, _ in used], [gpus for _, gpus in used])

    def look_at_hosts(self, each):
        """The number of GPUs of each host; 0 where none is to be used."""
        no_gpu = self.options.get("no_gpu", False)
        if not no_gpu:
            self.gpus = visible_gpus()
        hosts = self.hosts or [None]
        if no_gpu:
            return [0] * len(hosts)
        if self.hosts is None or all(
            name.lower() in ("localhost", "127.0.0.1", "::1") for name in hosts
        ):
            return [len(self.gpus)] * len(hosts)
        if self.options.get("dry_run") or each is not None:
            # They are taken to be as this one.
            return [len(self.gpus)] * len(hosts)
        answers = probe(self.hosts, self.interpreter or [sys.executable])
        self.cores = min(cores for _, cores in answers)
        return [gpus for gpus, _ in answers]

    def checked(self, counts, found):
        """Counts as they are; decides whether ranks use GPUs."""
        above = [(name, count, gpus) for (name, count), gpus in zip(counts, found) if count > gpus]
        self.on_gpus = not above
        if above and any(found):
            name, count, gpus = above[0]
            place = "this host" if name is None else name
            log(
                "WARNING",
                "{} ranks on {} are more than its {} GPUs: all ranks use CPUs; give fewer, or say "
                "--no-gpu".format(count, place, gpus),
            )
        return counts

    def devices_of_ranks(self):
        """The values of CUDA_VISIBLE_DEVICES by number on the host; none if ranks use CPUs."""
        if not self.on_gpus:
            return []
        most = max(count for _, count in self.counts)
        listed = self.gpus if len(self.gpus) >= most else [str(number) for number in range(most)]
        return listed[:most]

    def environment(self):
        """What the ranks find in their environment besides that of this process."""
        options, given = self.options, os.environ
        chosen = {}
        if "log_level" in options:
            level = options["log_level"].upper()
            if level not in LEVELS:
                raise BadUse(
                    "--log-level {}: use {}".format(options["log_level"], ", ".join(LEVELS))
                )
            chosen["TNT_LOG_LEVEL"] = level
        for key, name in (
            ("log_all", "TNT_LOG_ON_ALL_DEVICES"),
            ("output_all", "TNT_OUTPUT_ON_ALL_DEVICES"),
        ):
            if options.get(key):
                chosen[name] = "true"
        if "threshold" in options:
            text = options["threshold"]
            if not re.fullmatch(r"\d+(\.\d+)?", text):
                raise BadUse(
                    "--fusion-threshold {}: give kilobytes, such as 32, or 0 for no fusion".format(
                        text
                    )
                )
            chosen["TNT_FUSION_THRESHOLD"] = text
        failure = options.get("on_failure", given.get("TNT_ON_FAILURE") or "end").lower()
        if failure not in ("end", "continue"):
            raise BadUse("--on-failure {}: use end or continue".format(failure))
        least = options.get("min_ranks")
        if least is not None and failure != "continue":
            raise BadUse(
                "--min-ranks needs --on-failure=continue: otherwise every failure ends the job"
            )
        least = whole("--min-ranks", least or given.get("TNT_MIN_RANKS") or "1", 1)
        size = sum(count for _, count in self.counts)
        if least > size:
            raise BadUse("--min-ranks {} is more than the {} ranks of the job".format(least, size))
        self.min_ranks = least if failure == "continue" else None
        chosen["TNT_ON_FAILURE"] = failure
        chosen["TNT_MIN_RANKS"] = str(least)
        chosen["TNT_GPUS_PER_NODE"] = str(len(self.devices))
        chosen[SCRIPT_VARIABLE] = self.script or " ".join(self.command[len(self.interpreter) :])
        if not self.on_gpus:
            chosen["CUDA_VISIBLE_DEVICES"] = "-1"
        defaults = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
        most = max(count for _, count in self.counts)
        if most > 1:
            share = max(1, self.cores // most)
            defaults.update(
                {
                    "TF_NUM_INTRAOP_THREADS": str(share),
                    "TF_NUM_INTEROP_THREADS": str(max(2, share)),
                    "OMP_NUM_THREADS": str(share),
                }
            )
        chosen.update((name, value) for name, value in defaults.items() if not given.get(name))
        chosen.update(word.split("=", 1) for word in options.get("variables", []))
        return chosen

    def job(self):
        """The command of gaspi_run."""
        options = self.options
        words = [find_tool("gaspi_run")]
        if self.hosts is None:
            # Also in an allocation of a batch system, whose hosts a hostfile has to name.
            words += ["-n", str(self.counts[0][1]), "--here"]
        else:
            words += ["--hosts", joined(self.counts)]
        if options.get("pin"):
            words += ["--bind", "numa-cyclic"]
        elif options.get("pin_memory"):
            words += ["--bind", "none"]
        if options.get("pin_memory"):
            words.append("--bind-memory")
        if self.min_ranks is None:
            words.append("--kill-on-failure")
        else:
            words += ["--min-ranks", str(self.min_ranks)]
        words += ["--last-lines", str(LAST_LINES)]
        if options.get("tag"):
            words.append("--label=rank")
        if self.output is not None:
            words += ["--output-dir", self.output, "--tee"]
        set_by_user = [word.split("=", 1)[0] for word in options.get("variables", [])]
        if self.devices and "CUDA_VISIBLE_DEVICES" not in set_by_user:
            words += ["--local-env", "CUDA_VISIBLE_DEVICES=" + ",".join(self.devices)]
        for word in options.get("variables", []):
            words += ["--env", word]
        return words + ["--"] + self.command

    def described(self):
        """What --dry-run prints."""
        import shlex

        quote = shlex.quote
        lines = [
            "host {}: {} rank{}{}".format(
                "(this one)" if host is None else host,
                count,
                "" if count == 1 else "s",
                " on GPU " + ", ".join(self.devices[:count]) if self.devices else " on the CPU",
            )
            for host, count in self.counts
        ]
        if self.hosts and not self.options.get("no_gpu"):
            lines.append(
                "(in a dry run other hosts are not asked for their GPUs: they are taken to be as"
                " this one)"
            )
        lines.append("directory: " + quote(self.directory))
        lines += [
            "environment: {}={}".format(name, quote(value))
            for name, value in sorted(self.variables.items())
        ]
        lines.append("command: " + " ".join(quote(word) for word in self.job()))
        return "\n".join(lines)

    def start(self):
        """Becomes gaspi_run."""
        words = self.job()
        os.chdir(self.directory)
        environment = dict(os.environ, **self.variables)
        environment["PWD"] = self.directory
        if self.devices:
            environment.pop("CUDA_VISIBLE_DEVICES", None)
        sys.stdout.flush()
        try:
            os.execve(words[0], words, environment)
        except OSError as error:
            raise BadUse("{}: {}".format(words[0], error.strerror)) from None


def cleanup(options, words):
    """Becomes gaspi_cleanup."""
    command = [find_tool("gaspi_cleanup"), "--all"]
    if options.get("force"):
        command.append("--kill")
    if len(words) > 1:
        raise BadUse("--cleanup takes one SCRIPT, without its arguments")
    with_variable = SCRIPT_VARIABLE
    if words:
        directory = os.path.abspath(options.get("directory", os.getcwd()))
        with_variable += "=" + os.path.join(directory, words[0])
    command += ["--with", with_variable]
    if "hostfile" in options:
        command += ["--hosts", ",".join(host for host in read_hosts(options["hostfile"]))]
    if options.get("dry_run"):
        import shlex

        print("command: " + " ".join(shlex.quote(word) for word in command))
        return
    os.execv(command[0], command)


def run(words):
    """Does what the command line says."""
    global _level
    options, rest = parse(words)
    level = options.get("log_level", os.environ.get("TNT_LOG_LEVEL") or "WARNING").strip().upper()
    if level not in LEVELS:
        name = "--log-level " if "log_level" in options else "TNT_LOG_LEVEL="
        raise BadUse("{}{}: use {}".format(name, level, ", ".join(LEVELS)))
    _level = level
    for name in ("TNT_LOG_ON_ALL_DEVICES", "TNT_OUTPUT_ON_ALL_DEVICES"):
        truth(name, os.environ.get(name))
    if options.get("help"):
        print(USAGE, end="")
    elif options.get("version"):
        print(PROGRAM, VERSION)
    elif options.get("cleanup"):
        cleanup(options, rest)
    elif options.get("force"):
        raise BadUse("--force is for --cleanup")
    elif options.get("dry_run"):
        print(Plan(options, rest).described())
    else:
        Plan(options, rest).start()


def main(words=None):
    """The command; its exit status."""
    try:
        run(sys.argv[1:] if words is None else words)
    except BadUse as reason:
        log("ERROR", str(reason))
        return BAD_USE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
