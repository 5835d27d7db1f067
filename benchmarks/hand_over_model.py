#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a team's hand-over costs on machines with many cores: a simulation, for want of such machines.

    benchmarks/hand_over_model.py                              a table, to standard output
    benchmarks/hand_over_model.py --into benchmarks/README.md  between its two marks instead
    benchmarks/hand_over_model.py --line-ns 40,110,220         with these times of a cache line on every machine

Threads are events. A cache line has one owner and serves one write at a time: a write takes the time in which the line
travels from its owner to the writer, which depends on whether both are in one die, in one socket, or in two. A reader
gets a line in the same time, and readers do not delay each other. A thread that stores to many lines without waiting
for each has up to STORES of them under way; with sequentially consistent stores, one.

A step over n float32 elements is divided as executor::for_each_slice() divides it (chunks_of() in executor.hpp), and
each thread moves its bytes at an equal share of the machine's bandwidth. While a request is handed over, nothing moves:
what a step loses is the time from the call to its return, less the time of its bytes alone.

Designs, each with what the ones before it have:

before       every member enters and leaves one gate, by a compare-exchange and two read-modify-writes; mailboxes are
             stored one after the other; chunks have one size, so some threads get one more than others
even chunks  all threads get equally many chunks, whose sizes differ by at most a granule
one RMW      a member leaves by one read-modify-write, and the lines of all mailboxes travel at the same time
groups       GROUP members enter and leave a gate of their own; only the first and the last of them touch the team's

Steps in cache, which take a thread CACHED_NS an element, are divided among fewer threads: as many as 16384 elements
each allow, or as useful_threads.hpp chooses by the cost of a hand-over to two threads and to all. It assumes ASSUMED_NS
an element, whatever the CPU.
"""
import argparse
import heapq

import files

BEGIN, END = "<!-- hand-over model -->", "<!-- end of hand-over model -->"
STORES, GROUP, GRANULE = 10, 8, 64
HIT_NS, POLL_NS = 2, 20
BYTES, CACHED_NS, ASSUMED_NS = 28, 0.15, 0.20  # of a float32 element
# Cores, cores of a die, cores of a socket, GB/s of the whole machine, and nanoseconds of a line within a die, across
# dies and across sockets: assumptions, as no such machine was there.
MACHINES = {"Grace, 72 cores": (72, 72, 72, 450, (70, 70, 70)),
            "2 x 64 cores, dies of 8": (128, 8, 64, 800, (40, 110, 220)),
            "2 x 96 cores, dies of 8": (192, 8, 96, 1000, (40, 110, 220))}
CACHED_SIZES = {"32K": 1 << 15, "128K": 1 << 17, "512K": 1 << 19, "1M": 1 << 20, "2M": 1 << 21, "4M": 1 << 22}
SIZES = {"1M": 1 << 20, "16M": 1 << 24, "400M": 400 * (1 << 20)}
DESIGNS = ("before", "even chunks", "one RMW", "groups")
MAX_MIN_SLICE, MIN_CHUNK = 16384, 4096  # elements, as in executor.hpp


def chunks_of(n, threads, even, per_thread=16, min_slice=MAX_MIN_SLICE, max_chunk=65536, smallest=MIN_CHUNK):
    """As in executor.hpp: chunks and threads. even: all threads get equally many."""
    granules = -(-n // GRANULE)
    useful = max(1, min(n // min_slice, granules, threads))
    chunk = max(min(n // useful // per_thread, max_chunk), min(smallest, n // useful))
    chunks = max(-(-granules // max(chunk // GRANULE, 1)), 1)
    used = min(useful, chunks)
    rounded = -(-chunks // used) * used
    return rounded if even and rounded <= granules else chunks, used


class Line:
    """A cache line: the core that wrote it last, and until when it is being moved."""

    def __init__(self, owner=0):
        self.owner, self.free_at = owner, 0.0


class Machine:
    def __init__(self, die, socket, line_ns):
        self.die, self.socket, self.line_ns = die, socket, line_ns

    def travel(self, a, b):
        if a == b:
            return HIT_NS
        return self.line_ns[0 if a // self.die == b // self.die else 1 if a // self.socket == b // self.socket else 2]

    def write(self, core, at, line):
        """Returns when a read-modify-write that begins at this time is complete."""
        begin = max(at, line.free_at)
        line.free_at = begin + self.travel(line.owner, core)
        line.owner = core
        return line.free_at

    def read(self, core, at, line):
        return max(at, line.free_at) + self.travel(line.owner, core)


def request(machine, design, threads, chunks, chunk_ns, slow=1.0):
    """Nanoseconds from the call to its return, for chunks of one size. The caller takes the place of member 0.
    slow: the speed of one member in sixteen."""
    grouped = design == "groups" and threads > GROUP
    members_of_gate = GROUP if grouped else threads
    gates = [Line() for _ in range(-(-threads // members_of_gate))]
    root = Line()
    mailboxes = [Line(member) for member in range(threads)]
    is_serial = design in ("before", "even chunks")
    ways = 1 if is_serial else STORES
    now = 4 * HIT_NS  # the lock and the queue of requests
    # Queues of chunks are stored in any case without waiting for each.
    now += sum(machine.travel(0, member) for member in range(1, threads)) / STORES
    now += sum(machine.travel(gate * members_of_gate, 0) for gate in range(len(gates))) / ways
    seen = [now] * threads
    for member in range(1, threads):
        now += machine.travel(mailboxes[member].owner, 0) / ways
        seen[member] = now + machine.travel(0, member) + POLL_NS
    seen[0] = now
    # Enter in the order in which members see the request.
    began = list(seen)
    admitted = {0}
    for member in sorted(range(1, threads), key=seen.__getitem__):
        gate = member // members_of_gate
        began[member] = machine.write(member, seen[member], gates[gate])
        if grouped and gate not in admitted:
            admitted.add(gate)
            began[member] = machine.write(member, began[member], root)
    # Each takes chunks of its own queue, then steals half of the fullest one: with equal speeds that evens out what
    # late members have left, one chunk at a time.
    free = [(began[member], member) for member in range(threads)]
    heapq.heapify(free)
    queues = [chunks // threads + (member < chunks % threads) for member in range(threads)]
    left, finished = chunks, [0.0] * threads
    while left:
        at, member = heapq.heappop(free)
        if queues[member]:
            queues[member] -= 1
            at += HIT_NS
        else:
            victim = max(range(threads), key=queues.__getitem__)
            # It reads the lines of all queues; empty ones have not changed.
            at += 2 * machine.travel(victim, member)
            taken = -(-queues[victim] // 2)
            queues[victim] -= taken
            queues[member] += taken - 1
        left -= 1
        heapq.heappush(free, (at + chunk_ns / (slow if member % 16 == 15 else 1), member))
    for at, member in free:
        finished[member] = at + sum(machine.travel(other, member) for other in range(threads)) / STORES
    # Leave in the order in which members are finished. The gate is open for entering meanwhile.
    rest = [0] * len(gates)
    for member in range(threads):
        rest[member // members_of_gate] += 1
    over = 0.0
    for member in sorted(range(threads), key=finished.__getitem__):
        gate = member // members_of_gate
        at = machine.write(member, finished[member], gates[gate])
        if is_serial:
            at = machine.write(member, at, gates[gate])
        rest[gate] -= 1
        if grouped and rest[gate] == 0:
            at = machine.write(member, at, root)
        over = max(over, at)
    return over + machine.travel(threads - 1, 0)


def loss(cores, die, socket, gb_per_s, line_ns, n, design, per_thread=16, max_chunk=65536, slow=1.0):
    """Microseconds of a step, of its bytes alone, and the number of threads."""
    chunks, threads = chunks_of(n, cores, design != "before", per_thread, max_chunk=max_chunk)
    # Threads share the bandwidth; a third of the cores is enough to use all of it.
    share = gb_per_s / max(threads, cores / 3)
    took = request(Machine(die, socket, line_ns), design, threads, chunks, n / chunks * BYTES / share, slow)
    speed = sum(slow if member % 16 == 15 else 1 for member in range(threads))
    return took / 1e3, n * BYTES / (share * speed) / 1e3, threads


def cached(machine, n, threads, min_slice):
    """Microseconds of a step in cache, and its threads."""
    chunks, threads = chunks_of(n, threads, True, min_slice=min_slice)
    if threads == 1:
        return n * CACHED_NS / 1e3, 1
    return request(machine, DESIGNS[2], threads, chunks, n / chunks * CACHED_NS) / 1e3, threads


def by_cost(machine, cores, n):
    """cached() with the threads and the slices of useful_threads.hpp."""
    two_ns, all_ns = (request(machine, DESIGNS[2], threads, threads, 0) for threads in (2, cores))
    each_ns = (all_ns - two_ns) / (cores - 2)
    of_two = max(MIN_CHUNK, min(MAX_MIN_SLICE, 4 * two_ns / ASSUMED_NS) // GRANULE * GRANULE)
    fastest = max(2, min(cores, int((n * ASSUMED_NS / each_ns) ** 0.5)))
    return cached(machine, n, fastest if n // 2 >= of_two else 1, MIN_CHUNK)


def percent(took, alone):
    return f"{100 * (took / alone - 1):.1f}%"


def markdown(head, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def designs_table(machines):
    rows = []
    for name, machine in machines.items():
        for size, n in SIZES.items():
            results = [loss(*machine, n, design) for design in DESIGNS]
            rows.append([name, size, str(results[0][2]), f"{results[0][1]:.1f}"] +
                        [f"{took:.1f} ({percent(took, alone)})" for took, alone, _ in results])
    return markdown(["machine", "elements", "threads", "bytes alone, us", *(f"{d}, us (lost)" for d in DESIGNS)], rows)


def chunks_table(machines):
    counts = (1, 4, 16, 64)
    rows = []
    for name, machine in machines.items():
        for size, n in SIZES.items():
            for slow in (1.0, 0.8):
                # Without the limit of 65536 elements, which large steps would meet.
                rows.append([name, size, "all" if slow == 1 else "15 of 16; others 80%"] + [percent(
                    *loss(*machine, n, DESIGNS[2], per_thread, 1 << 30, slow)[:2]) for per_thread in counts])
    return markdown(["machine", "elements", "at full speed", *(f"{c} chunks a thread" for c in counts)], rows)


def threads_table(machines):
    rows = []
    for name, (cores, die, socket, _, line_ns) in machines.items():
        machine = Machine(die, socket, line_ns)
        for size, n in CACHED_SIZES.items():
            fixed, chosen = cached(machine, n, cores, MAX_MIN_SLICE), by_cost(machine, cores, n)
            best = min(cached(machine, n, threads, 1) for threads in range(1, cores + 1))
            rows.append([name, size, *(f"{took:.1f} ({threads})" for took, threads in (fixed, chosen, best))])
    head = ["machine", "elements", "16384 elements a thread, us (threads)", "by cost, us (threads)", "best, us (threads)"]
    return markdown(head, rows)


def three_times(text):
    try:
        times = tuple(float(ns) for ns in text.split(","))
    except ValueError:
        times = ()
    if len(times) != 3 or not all(0 < ns < float("inf") for ns in times):
        raise argparse.ArgumentTypeError(f"{text!r} is not three times above 0 in ns, such as 40,110,220")
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--line-ns", type=three_times, help="a cache line within a die, across dies and across sockets")
    parser.add_argument("--into", type=files.page(BEGIN, END),
                        help="write the table into this file, between its two marks")
    asked = parser.parse_args()
    machines = MACHINES
    if asked.line_ns:
        machines = {name: (*machine[:4], asked.line_ns) for name, machine in MACHINES.items()}
    text = (f"{designs_table(machines)}\n\nLost by number of chunks, with `{DESIGNS[2]}`:\n\n{chunks_table(machines)}\n\n"
            f"Threads that a step in cache uses, with `{DESIGNS[2]}`:\n\n{threads_table(machines)}\n")
    if asked.into:
        files.put(asked.into, BEGIN, END, text)
    else:
        print(text)


if __name__ == "__main__":
    main()
