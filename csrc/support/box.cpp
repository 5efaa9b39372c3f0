#include "support/box.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "support/error.h"

namespace pytracer {

namespace {

// What a child has to find without a lock: the mappings and descriptors of all boxes.
struct Range {
  std::atomic<char*> begin;  // null: free
  std::atomic<size_t> bytes;
};
constexpr int kRanges = 2048, kFiles = 16;
Range g_ranges[kRanges];

struct File {
  std::atomic<bool> is_taken;
  int descriptor;
  dev_t device;
  ino_t number;
  std::atomic<uint64_t> size;  // at least, if nobody has truncated it

  bool is_open() const noexcept {  // and still this file
    struct stat about {};
    return is_this(about);
  }
  bool is_truncated() const noexcept {
    struct stat about {};
    return is_this(about) && static_cast<uint64_t>(about.st_size) < size.load(std::memory_order_relaxed);
  }

 private:
  bool is_this(struct stat& about) const noexcept {
    return is_taken && fstat(descriptor, &about) == 0 && about.st_dev == device && about.st_ino == number;
  }
};
File g_files[kFiles];

int file_slot(int descriptor) {
  struct stat about {};
  if (fstat(descriptor, &about) != 0) throw IoError(errno, "cannot make a box", name_of_file(descriptor));
  for (int slot = 0; slot < kFiles; ++slot) {
    File& file = g_files[slot];
    if (file.is_taken.exchange(true)) continue;
    file.descriptor = descriptor;
    file.device = about.st_dev;
    file.number = about.st_ino;
    file.size = 0;
    return slot;
  }
  close(descriptor);
  throw Error("there are " + std::to_string(kFiles) + " boxes already");
}

// Maps a part of a file that no child gets. Null: no room.
char* map_part(int file, uint64_t offset, size_t bytes) noexcept {
  for (Range& range : g_ranges) {
    if (range.begin.load(std::memory_order_relaxed) != nullptr) continue;
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
    if (memory == MAP_FAILED) return nullptr;
    char* free = nullptr;
    char* const begin = static_cast<char*>(memory);
    range.bytes.store(bytes, std::memory_order_relaxed);
    if (madvise(memory, bytes, MADV_DONTFORK) != 0 || !range.begin.compare_exchange_strong(free, begin)) {
      munmap(memory, bytes);
      return nullptr;
    }
    return begin;
  }
  return nullptr;
}

// Puts zeroes in the place of a part that this child has not. Other handlers may have mapped something there.
void fill_hole(char* memory, size_t bytes) noexcept {
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
  void* const filled = mmap(memory, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (filled != MAP_FAILED && filled != memory) munmap(filled, bytes);  // an older kernel
}

void unmap_part(char* memory, size_t bytes) noexcept {
  for (Range& range : g_ranges) {
    if (range.begin.load(std::memory_order_relaxed) == memory) range.begin.store(nullptr);
  }
  munmap(memory, bytes);
}

// No child gets this either.
bool map_private(char* memory, size_t bytes) noexcept {
  void* const mapped = mmap(memory, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return mapped != MAP_FAILED && madvise(memory, bytes, MADV_DONTFORK) == 0;
}

void raise_to(std::atomic<uint64_t>& value, uint64_t to) noexcept {
  uint64_t now = value.load(std::memory_order_relaxed);
  while (now < to && !value.compare_exchange_weak(now, to, std::memory_order_release)) {
  }
}

void (*g_on_lost)() noexcept = nullptr;
std::atomic<bool> g_was_lost{false};
struct sigaction g_other_bus_errors;

// Whether a handler that was installed later has called ours for a box whose file was truncated.
bool was_raised_for_box(const siginfo_t& about) noexcept {
  if (about.si_code > 0 || about.si_pid != getpid()) return false;
  return std::any_of(g_files, g_files + kFiles, [](const File& file) { return file.is_truncated(); });
}

void on_bus_error(int number, siginfo_t* about, void* context) {
  const bool is_raised = about->si_code <= 0;
  if (is_raised && was_raised_for_box(*about)) {
    g_on_lost();
    g_was_lost.store(true, std::memory_order_relaxed);
    bool is_mapped = true;
    for (const Range& range : g_ranges) {
      char* const begin = range.begin.load(std::memory_order_relaxed);
      if (begin != nullptr) is_mapped &= map_private(begin, range.bytes.load(std::memory_order_relaxed));
    }
    if (is_mapped) return;  // to the other handler, and then to the instruction that failed
  }
  const char* const address = is_raised ? nullptr : static_cast<const char*>(about->si_addr);
  for (const Range& range : g_ranges) {
    char* const begin = range.begin.load(std::memory_order_relaxed);
    const size_t bytes = range.bytes.load(std::memory_order_relaxed);
    if (begin == nullptr || address < begin || address >= begin + bytes) continue;
    g_on_lost();
    g_was_lost.store(true, std::memory_order_relaxed);
    if (map_private(begin, bytes)) return;  // to the instruction that failed
  }
  if ((g_other_bus_errors.sa_flags & SA_SIGINFO) != 0) {
    g_other_bus_errors.sa_sigaction(number, about, context);
  } else {
    sigaction(number, &g_other_bus_errors, nullptr);
    if (is_raised) raise(number);  // otherwise the instruction fails again
  }
}

constexpr uint64_t rounded_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

// How much more than is used is taken ahead. The ring fills fastest: 8 MiB are 170,000 events.
uint64_t Box::ahead(BoxKind kind, uint64_t used) noexcept {
  constexpr uint64_t kMost = uint64_t{8} << 20;
  const auto in_use = static_cast<BoxKind>(static_cast<uint32_t>(kind) & ~static_cast<uint32_t>(BoxKind::spare));
  if (in_use == BoxKind::ring) return kMost;
  const bool is_fast = in_use == BoxKind::blocks || in_use == BoxKind::nodes || in_use == BoxKind::frames;
  return std::clamp(used / 2, is_fast ? uint64_t{4 * kPiece} : uint64_t{kPiece}, kMost);
}

Box::Box(int file) : slot_(file_slot(file)), process_(getpid()) {
  sem_init(&wake_, 0, 0);
  end_ = rounded_up(sizeof(BoxHeader), kPiece);
  char* memory = nullptr;
  if (allocate(0, sizeof(BoxHeader))) memory = map_part(file, 0, sizeof(BoxHeader));
  if (memory == nullptr) {
    const int reason = errno;
    const std::string name = name_of_file(file);
    close_file();
    throw IoError(reason, "cannot make a box", name);
  }
  header_ = reinterpret_cast<BoxHeader*>(memory);
  header_->layout = BoxHeader::kLayout;
  std::memcpy(header_->magic, BoxHeader::kMagic, sizeof(header_->magic));
}

Box::~Box() {
  if (getpid() != process_) return;
  close_file();
  unmap_part(reinterpret_cast<char*>(header_), sizeof(BoxHeader));
  sem_destroy(&wake_);
}

void Box::close_file() noexcept {
  File& file = g_files[slot_];
  if (descriptor() >= 0) close(file.descriptor);
  file.is_taken = false;
}

// -1: nothing can be done with the file any more.
int Box::descriptor() const noexcept {
  return getpid() == process_ && g_files[slot_].is_open() ? g_files[slot_].descriptor : -1;
}

// Leaves the disk some space: the program's own files come first.
bool Box::allocate(uint64_t offset, uint64_t bytes) noexcept {
  constexpr uint64_t kReserve = uint64_t{256} << 20;
  int file = descriptor();
  rlimit limit{};
  struct statvfs disk {};
  if (file < 0 || g_files[slot_].is_truncated() || getrlimit(RLIMIT_FSIZE, &limit) != 0 ||
      offset + bytes > limit.rlim_cur) {
    errno = EFBIG;
    return false;
  }
  const bool has_limit = fstatvfs(file, &disk) == 0 && disk.f_blocks != 0;
  if (has_limit && disk.f_bavail * disk.f_frsize < kReserve + bytes) {
    errno = ENOSPC;
    return false;
  }
  int result = -1;
  for (int attempt = 0; attempt < 100 && result != 0; ++attempt) {  // signals may interrupt it
    file = descriptor();  // the program may have closed it just now
    result = fallocate(file, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    if (result != 0 && errno != EINTR) break;
  }
  if (result == 0) raise_to(g_files[slot_].size, offset + bytes);
  return result == 0;
}

Box::Place Box::take(const BoxPart& part, size_t bytes, size_t item_bytes) noexcept {
  const uint64_t room = rounded_up(bytes, kPiece);
  const std::lock_guard lock(mutex_);
  const int file = descriptor();
  if (file < 0) return {};
  // A part that an array of this size has left, as those of generations do; else a new one.
  BoxEntry* free = nullptr;
  for (BoxEntry& entry : header_->entries) {
    if (entry.kind.load(std::memory_order_relaxed) != BoxKind::none) continue;
    if (entry.capacity == room || (entry.capacity == 0 && free == nullptr)) free = &entry;
    if (entry.capacity == room) break;
  }
  if (free == nullptr) {
    header_->is_cut.store(1, std::memory_order_relaxed);
    return {};
  }
  const bool is_new = free->capacity == 0;
  const uint64_t offset = is_new ? end_ : free->offset;
  char* const memory = map_part(file, offset, room);
  if (memory == nullptr) return {};
  if (is_new) end_ += room;
  free->device = static_cast<int16_t>(part.device);
  free->array = part.array;
  free->number = part.number;
  free->item_bytes = static_cast<uint32_t>(item_bytes);
  free->offset = offset;
  free->capacity = room;
  free->first = 0;
  free->serial = ++serial_;
  const uint64_t first = std::min<uint64_t>(room, ahead(part.kind, 0));
  free->backed.store(allocate(offset, first) ? first : 0, std::memory_order_relaxed);
  free->count.store(0, std::memory_order_relaxed);
  free->kind.store(part.kind, std::memory_order_release);
  return {memory, room, free};
}

size_t Box::back(const Place& place, size_t wanted) noexcept {
  const size_t from = place.entry->backed.load(std::memory_order_acquire), all = place.bytes;
  if (from < all) wake();
  // Only a part of what there is, so that the next call wakes the thread in time.
  if (wanted <= from) return from < all ? wanted + (from - wanted) / 2 : all;
  // In small steps: a hook waits for it.
  const size_t step = std::min<size_t>(from / 2, 1 << 20);
  const size_t to = std::min(all, rounded_up(std::max(wanted, from + step), kPiece));
  if (allocate(place.entry->offset + from, to - from)) {
    raise_to(place.entry->backed, to);
    return to;
  }
  header_->is_cut.store(1, std::memory_order_relaxed);
  if (map_private(place.memory + from, all - from)) return all;
  // The kernel has no mapping left to split this one. What the array had is lost, and it goes on.
  return map_private(place.memory, all) ? all : from;
}

void Box::give_back(const Place& place) noexcept {
  if (getpid() != process_) return;  // a child has not got it
  const std::lock_guard lock(mutex_);
  const bool is_empty = madvise(place.memory, place.bytes, MADV_REMOVE) == 0;
  unmap_part(place.memory, place.bytes);
  if (!is_empty) place.entry->capacity = UINT64_MAX;  // nothing follows: it would not begin with zeroes
  place.entry->kind.store(BoxKind::none, std::memory_order_release);
}

void Box::begin_spare(uint32_t number) noexcept {
  for (BoxEntry& entry : header_->entries) {
    const auto kind = static_cast<uint32_t>(entry.kind.load(std::memory_order_relaxed));
    constexpr auto kSpare = static_cast<uint32_t>(BoxKind::spare);
    if ((kind & kSpare) == 0) continue;
    entry.number = number;
    entry.kind.store(static_cast<BoxKind>(kind & ~kSpare), std::memory_order_release);
  }
}
void Box::wait() noexcept {
  while (sem_wait(&wake_) != 0) {
  }
  is_woken_ = false;
}

void Box::leave_descriptors() noexcept {
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
  constexpr unsigned kUnshare = 2, kLast = ~0u;  // CLOSE_RANGE_UNSHARE
  const File& file = g_files[slot_];
  const auto own = static_cast<unsigned>(file.descriptor);
  if (syscall(SYS_close_range, own + 1, kLast, kUnshare) != 0) return;
  if (own != 0) syscall(SYS_close_range, 0, own - 1, 0);
  if (!file.is_open()) close(file.descriptor);
}

void Box::keep_ahead() noexcept {
  for (BoxEntry& entry : header_->entries) {
    const std::lock_guard lock(mutex_);  // not over all: take() waits for one at most
    const BoxKind kind = entry.kind.load(std::memory_order_acquire);
    // Once something is in memory alone, what follows it has no use in the file.
    if (kind == BoxKind::none || header_->is_cut.load(std::memory_order_relaxed) != 0) continue;
    const uint64_t backed = entry.backed.load(std::memory_order_relaxed);
    const uint64_t count = entry.count.load(std::memory_order_acquire);  // a ring sets `first` before it
    const uint64_t first = std::min(count, entry.first.load(std::memory_order_relaxed));
    const uint64_t used = std::min(entry.capacity, (count - first) * entry.item_bytes);
    const uint64_t to = std::min(entry.capacity, rounded_up(used + ahead(kind, used), kPiece));
    if (backed < to && allocate(entry.offset + backed, to - backed)) raise_to(entry.backed, to);
  }
}

void Box::watch(void (*on_lost)() noexcept) noexcept {
  if (g_on_lost != nullptr) return;
  g_on_lost = on_lost;
  struct sigaction action {};
  action.sa_sigaction = &on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGBUS, &action, &g_other_bus_errors);
}

bool Box::was_lost() noexcept { return g_was_lost.load(std::memory_order_relaxed); }

void Box::after_fork_in_child() noexcept {
  for (Range& range : g_ranges) {
    char* const begin = range.begin.load(std::memory_order_relaxed);
    if (begin == nullptr) continue;
    fill_hole(begin, range.bytes.load(std::memory_order_relaxed));
    range.begin.store(nullptr, std::memory_order_relaxed);
  }
  g_was_lost.store(false, std::memory_order_relaxed);
  for (File& file : g_files) {
    if (file.is_open()) close(file.descriptor);
    file.is_taken = false;
  }
}

}  // namespace pytracer
