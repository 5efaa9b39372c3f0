// A thread that asks for Python's lock while Python ends is ended by Python, up to 3.13, in a way that
// ends the process by SIGABRT if the thread is inside of C++ ("terminate called without an active
// exception"). torch's autograd threads do so at the end of a backward pass (pytorch#38228), which is
// frequent where the pass takes no time. This function takes the place of the C library's: such a
// thread sleeps instead, as in Python 3.14.
#include <dlfcn.h>
#include <unistd.h>

extern "C" [[noreturn]] void pthread_exit(void* result) {
  const void* python = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
  Dl_info caller{};
  Dl_info interpreter{};
  if (python != nullptr && dladdr(python, &interpreter) != 0 &&
      dladdr(__builtin_return_address(0), &caller) != 0 &&
      caller.dli_fbase == interpreter.dli_fbase) {
    for (;;) pause();
  }
  using Exit = void (*)(void*);
  reinterpret_cast<Exit>(dlsym(RTLD_NEXT, "pthread_exit"))(result);
  _exit(1);  // not reached
}
