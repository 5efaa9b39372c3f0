// The box: a file that has the recorder's tables while they are in use, so that they outlive the process.
//
// 1. A table's memory is a shared mapping of a part of the file. The kernel writes it back; nobody else
//    does. A store costs what it costs in other memory, but for the first one to a page that was written back:
//    the file system then takes microseconds, or longer while its disk is busy.
// 2. File space is taken before it is touched (fallocate), piece by piece. Where there is none any more,
//    the rest of the table is memory of the process alone, and the box says so. So a full disk is no
//    SIGBUS, and a limit of the file's size no SIGXFSZ. A thread takes it ahead (session/box_notes.h), because
//    the file system may wait for its disk. A hook does so only if it fills a table faster than the thread
//    can follow, or if there is no thread.
// 3. The descriptor may be closed, or be another file's, by the program's doing: it is compared each time.
//    The thread has a table of descriptors of its own, where the kernel can do that (Linux 5.9).
// 4. A child does not have the mapping. after_fork_in_child() puts zeroes in its place.
// 5. If somebody truncates the file, or its disk fails, the kernel raises SIGBUS at the next touch. Then
//    zeroes take the place of the table, on_lost() ends the recording, and the process goes on. If a later
//    handler, such as faulthandler's, calls ours by raise(), the address is unknown: then the file's size tells.
// 6. Its layout is below; restore/box_reader.h reads it.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace pytracer {

// What an array of a box has. A table of names has two arrays: of its strings, and of their bytes.
enum class BoxKind : uint32_t {
  none, ring, blocks, segments, uses,
  pools, labels, texts,
  codes, frames, nodes, names,
  phases, node_types, steps, clock, accelerator_clock, description,
  spare = 1 << 16,  // with the kind that it will have: readers do not look at it
};

struct alignas(64) BoxEntry {
  std::atomic<BoxKind> kind;  // none: the entry is free
  int16_t device;
  uint16_t array;             // 1: the bytes of a table of names
  uint32_t number;            // of a generation: the number before its first stack; of a ring: its capacity
  uint32_t item_bytes;
  uint64_t offset, capacity;  // in the file; bytes
  std::atomic<uint64_t> backed;  // bytes from the offset on that the file has
  std::atomic<uint64_t> count;   // the array's own; see its class
  std::atomic<uint64_t> first;   // of a ring: the number of its first event
  uint64_t serial;               // how many entries were made before
};
static_assert(sizeof(BoxEntry) == 64);

struct BoxHeader {
  static constexpr char kMagic[8] = {'p', 'y', 't', 'r', 'b', 'o', 'x', 0};
  static constexpr uint32_t kLayout = 5, kEntries = 510;
  char magic[8];
  uint32_t layout;
  std::atomic<uint32_t> is_cut;  // something did not find space in the file
  uint64_t unused[14];
  BoxEntry entries[kEntries];
};
static_assert(sizeof(BoxHeader) == 32 * 1024);

class Box;

// Where an array lies; without a box, in memory of the process alone.
struct BoxPart {
  std::shared_ptr<Box> box;
  BoxKind kind = BoxKind::none;
  int device = 0;
  uint32_t number = 0;
  uint16_t array = 0;
};

class Box {
 public:
  // Takes over the descriptor of an empty file. Throws IoError if there is no space, or no such files.
  explicit Box(int file);
  ~Box();
  Box(Box&&) = delete;

  // Any thread, in a hook too, all below. Reserves a part of the file, and address space; `memory` is null
  // if there is no room.
  struct Place {
    char* memory = nullptr;
    size_t bytes = 0;
    BoxEntry* entry = nullptr;  // only this process has it
  };
  Place take(const BoxPart& part, size_t bytes, size_t item_bytes) noexcept;
  // Makes the first bytes of a part usable, and some more. Returns how many are usable: less than
  // `wanted` only if the process has no address space.
  size_t back(const Place& place, size_t wanted) noexcept;
  void give_back(const Place& place) noexcept;  // not in a hook

  // Spare parts become those of a generation that follows the stack of this number.
  void begin_spare(uint32_t number) noexcept;

  // The thread that takes space ahead: whether there is one, and its work. wake(): it has something to do.
  void set_keeper(bool is_there) noexcept { has_keeper_.store(is_there, std::memory_order_relaxed); }
  bool has_keeper() const noexcept { return has_keeper_.load(std::memory_order_relaxed); }
  void wake() noexcept { if (has_keeper() && !is_woken_.exchange(true)) sem_post(&wake_); }
  void wait() noexcept;
  void leave_descriptors() noexcept;  // of the process: the thread has the box's alone, which nobody else closes
  void keep_ahead() noexcept;

  // What is in the box stays usable, and grows in memory of the process alone.
  void close_file() noexcept;

  static void after_fork_in_child() noexcept;
  // Has `on_lost` called in a signal's handler when a box's file is gone; only the first call counts.
  static void watch(void (*on_lost)() noexcept) noexcept;
  static bool was_lost() noexcept;

 private:
  bool allocate(uint64_t offset, uint64_t bytes) noexcept;
  int descriptor() const noexcept;

  static constexpr size_t kPiece = 64 * 1024;
  static uint64_t ahead(BoxKind kind, uint64_t used) noexcept;

  const int slot_;  // of the descriptor
  const int process_;
  BoxHeader* header_ = nullptr;
  sem_t wake_;
  std::atomic<bool> has_keeper_{false}, is_woken_{false};
  std::mutex mutex_;  // guards which entries there are, and the next two; held while a part grows
  uint64_t end_ = 0;  // of the file's parts
  uint64_t serial_ = 0;
};

}  // namespace pytracer
