// Signals that wake a waiting thread, whatever the interrupted thread is doing: a job that hangs in
// C code never runs a Python signal handler.
//
// 1. The handler notes the signal and writes to a pipe. It is async-signal-safe: it may interrupt
//    anything, even an allocator with its lock held. Then it calls the program's handler that it
//    replaced, if any, with the program's mask and flags. Without one, system calls continue
//    (SA_RESTART).
// 2. unwatch_signal() restores the handler that was there before, unless another one took our
//    handler's place meanwhile. If there was none, our handler stays and does nothing: a signal that
//    is sent once too often, for example while the job exits, must not end the job.
// 3. The pipe is not closed while it is in use: a running handler might write into the next file of
//    that number.
// 4. A forked child watches nothing and does not share the parent's pipe. The handler stays, and
//    calls only the program's handler until the child itself watches a signal.
// 5. A program may close descriptors that it did not open, and open files under their numbers, also
//    files of the same kind. So before each use the descriptors are checked to be this pipe's: no
//    other file is written to, read or closed.
// 6. Control operations come one at a time: the bindings hold the GIL. So do forks.
#pragma once

#include <cstdint>

namespace pytracer {

// Control thread, all below.
// Returns a descriptor that is readable when a signal came or wake() was called; a new one if the
// program has closed the pipe. Throws Error.
int wake_event();
// Watches this signal, 1 to 64, from now on. Throws Error.
void watch_signal(int number);
void unwatch_signal(int number) noexcept;
// Whether the signal still has the handler that watch_signal() installed.
bool has_signal_handler(int number) noexcept;
// Returns the signals that came since the last call, bit `number - 1` for each, however often it
// came. Afterwards the descriptor is no longer readable.
uint64_t take_signals() noexcept;

// Any thread, and the handler.
void wake() noexcept;
// Whether the pipe exists and the program has closed none of its ends.
bool has_wake_event() noexcept;

}  // namespace pytracer
