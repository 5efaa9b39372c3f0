// Signals that wake a waiting thread, whatever the thread they interrupt is doing: a job that hangs
// in C never gets to a handler of Python's.
//
// 1. The handler notes the signal and writes to an eventfd. It is async-signal-safe: it may
//    interrupt anything, an allocator with its lock held too. System calls go on (SA_RESTART).
// 2. unwatch_signal() puts back the handler that was there before; one that took our handler's
//    place meanwhile stays. Where there was none ours stays, and does nothing: a signal that is sent
//    once too often, while a job is exiting say, must not end it.
// 3. The eventfd is never closed: a handler on its way might write into the next file of that number.
// 4. A forked child watches nothing, whatever it was forked from, and has no part in the parent's
//    eventfd. The handler stays, and does nothing there until the child watches by itself.
// 5. Control operations come one at a time: the bindings hold the GIL. So do forks.
#pragma once

#include <cstdint>

namespace pytracer {

// Control thread, all below.
// An eventfd that is readable when a signal came, or wake() was called. Throws Error.
int wake_event();
// From now on this signal, 1 to 64, wakes. Throws Error.
void watch_signal(int number);
void unwatch_signal(int number) noexcept;
// The signals that came since the last call, bit `number - 1` for each; many of one are one. Then
// the eventfd is no longer readable.
uint64_t take_signals() noexcept;

// Any thread, and the handler.
void wake() noexcept;

}  // namespace pytracer
