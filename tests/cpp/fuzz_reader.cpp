// `fuzz_reader COUNT SEED FILE...` reads COUNT mutations of the snapshots and replays the readable
// ones. Every file must give a result, a ReadError or a ContradictionError: no crash, no hang, and
// no memory beyond a multiple of the file. `fuzz_reader 1 SEED FILE...` repeats one mutation.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "reading/history.h"
#include "reading/tables.h"

using namespace pytracer::reading;

// AddressSanitizer bounds the memory itself; in other builds the address space is limited.
extern "C" const char* __asan_default_options() {
  return "max_allocation_size_mb=64:abort_on_error=1:detect_leaks=1";
}
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kBoundAddressSpace = false;
#else
constexpr bool kBoundAddressSpace = true;
#endif
constexpr rlim_t kMostMemory = 512 << 20;
constexpr unsigned kMostSeconds = 200;  // for one file of about 50 KB

namespace {

char g_current[64];

void print_current(int signal_number) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, g_current, strlen(g_current));
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

std::string mutated(const std::vector<std::string>& files, std::mt19937_64& random) {
  const auto below = [&](size_t end) { return static_cast<size_t>(random() % (end > 0 ? end : 1)); };
  constexpr char kOpcodes[] = "(.012JKMG]aeN}sudl)thjqrXcRbi\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d"
                              "\x8f\x90\x91\x93\x94\x95\x96\x81\x92";
  constexpr uint64_t kNumbers[] = {0,         1,         0x7f,      0xff,          0x7fffffff,
                                   1u << 31,  UINT32_MAX, UINT64_MAX, uint64_t{1} << 62,
                                   uint64_t{1} << 63, 0x7ff0000000000000, 512, 0x200000};
  std::string bytes = files[below(files.size())];
  // Half of the files keep their length, so that more of them are readable to the end.
  const size_t kinds = random() % 2 ? 2 : 9;
  for (size_t times = 1 + below(4); times > 0 && !bytes.empty(); --times) {
    const size_t at = below(bytes.size()), count = below(1 + below(200));
    switch (below(kinds)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ 1 << below(8)); break;
      case 1: bytes[at] = static_cast<char>(random()); break;
      case 2: bytes.erase(at, count); break;
      case 3: bytes.insert(below(bytes.size()), bytes.substr(at, count)); break;
      case 4: bytes[at] = kOpcodes[below(sizeof(kOpcodes) - 1)]; break;
      case 5: bytes.insert(at, 1, kOpcodes[below(sizeof(kOpcodes) - 1)]); break;
      case 6: {
        const uint64_t number = kNumbers[below(std::size(kNumbers))];
        bytes.replace(at, std::min<size_t>(below(9), bytes.size() - at),
                      std::string(reinterpret_cast<const char*>(&number), below(9)));
        break;
      }
      case 7: bytes.resize(at); break;
      default: {
        const std::string& source = files[below(files.size())];
        bytes.insert(at, source.substr(below(source.size()), count));
      }
    }
  }
  return bytes;
}

// Combines the state as pytracer/analysis/history.py does.
void replay_device(const Tables& tables, size_t device) {
  const RowRange events = tables.traces[device];
  const SegmentColumns& segments = tables.segments;
  const BlockColumns& blocks = tables.blocks;
  Column<int64_t> addresses, sizes, block_addresses, block_sizes, requested;
  Column<bool> expandable, pending;
  for (uint64_t i = tables.device_segments.begin; i < tables.device_segments.end; ++i) {
    if (segments.device[i] != static_cast<int64_t>(device)) continue;
    addresses.push_back(segments.address[i]);
    sizes.push_back(segments.size[i]);
    expandable.push_back(segments.is_expandable[i]);
  }
  for (uint64_t i = tables.device_blocks.begin; i < tables.device_blocks.end; ++i) {
    const auto segment = static_cast<size_t>(blocks.segment[i]);
    if (segments.device[segment] != static_cast<int64_t>(device)) continue;
    if (blocks.state[i] == kInactive) continue;
    block_addresses.push_back(blocks.address[i]);
    block_sizes.push_back(blocks.size[i]);
    requested.push_back(blocks.requested[i]);
    pending.push_back(blocks.state[i] == kPendingFree);
  }
  const TraceView trace{events.end - events.begin, tables.events.action.data() + events.begin,
                        tables.events.address.data() + events.begin,
                        tables.events.size.data() + events.begin};
  const StateView state{addresses.size(),      addresses.data(),   sizes.data(),
                        expandable.data(),     block_sizes.size(), block_addresses.data(),
                        block_sizes.data(),    requested.data(),   pending.data()};
  Watch watch;
  replay(trace, state, AllocatorRules(), watch);
}

struct Counts {
  int read = 0, replayed = 0, refused = 0;
};

void try_file(const std::string& bytes, Counts& counts) {
  Watch watch;
  Tables tables(watch);
  try {
    size_t used = 0;
    ByteReader in([&](char* buffer, size_t size) {
      const size_t count = bytes.copy(buffer, size, used);
      used += count;
      return count;
    });
    read_snapshot(in, tables, watch);
  } catch (const ReadError&) {
    ++counts.refused;
    return;
  }
  ++counts.read;
  for (size_t device = 0; device < tables.traces.size(); ++device) {
    try {
      replay_device(tables, device);
      ++counts.replayed;
    } catch (const ContradictionError&) {
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return std::fprintf(stderr, "fuzz_reader COUNT SEED FILE...\n"), 2;
  std::vector<std::string> files;
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (kBoundAddressSpace) {
    const rlimit bound{kMostMemory, kMostMemory};
    setrlimit(RLIMIT_AS, &bound);
  }
  for (int number : {SIGSEGV, SIGABRT, SIGALRM}) std::signal(number, &print_current);
  Counts counts;
  for (const std::string& file : files) try_file(file, counts);
  const bool all_are_read = counts.read == static_cast<int>(files.size());
  const uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  const uint64_t count = std::strtoull(argv[1], nullptr, 10);
  for (uint64_t i = 0; i < count; ++i) {
    std::snprintf(g_current, sizeof(g_current), "fuzz_reader 1 %llu\n",
                  static_cast<unsigned long long>(seed + i));
    std::mt19937_64 random(seed + i);
    alarm(kMostSeconds);
    try_file(mutated(files, random), counts);
  }
  std::printf("%d read, %d replayed, %d refused\n", counts.read, counts.replayed, counts.refused);
  return all_are_read ? 0 : 1;
}
