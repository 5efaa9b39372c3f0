#include "restore/box_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <memory>

#include "support/error.h"
#include "support/intern_table.h"

namespace pytracer {

BoxReader::BoxReader(int file) : file_(file) {
  const auto header = std::make_unique<BoxHeader>();
  struct stat before {}, about {};
  if (fstat(file, &before) != 0) throw IoError(errno, "cannot read the box", name_of_file(file));
  const size_t size = read(0, header.get(), sizeof(BoxHeader));
  if (size != sizeof(BoxHeader) || std::memcmp(header->magic, BoxHeader::kMagic, sizeof(header->magic)) != 0) {
    throw Error("this is not a pytracer box");
  }
  if (header->layout != BoxHeader::kLayout) {
    throw Error("the box was made by another version of pytracer, with layout " +
                std::to_string(header->layout) + " instead of " + std::to_string(BoxHeader::kLayout));
  }
  is_cut_ = header->is_cut.load() != 0;
  if (fstat(file, &about) != 0) throw IoError(errno, "cannot read the box", name_of_file(file));
  uint64_t sum = 0;
  for (const BoxEntry& entry : header->entries) {
    const BoxKind kind = entry.kind.load();
    const auto end = static_cast<uint64_t>(about.st_size);
    if (kind == BoxKind::none || entry.offset > end) continue;
    const uint64_t backed = std::min({entry.backed.load(), end - entry.offset, kMaxArrayBytes});
    arrays_.push_back({kind, entry.device, entry.array, entry.number, entry.item_bytes, entry.offset, backed,
                       entry.count.load(), entry.first.load(), entry.serial,
                       static_cast<uint64_t>(reinterpret_cast<const char*>(&entry) -
                                             reinterpret_cast<const char*>(header.get()))});
    sum += backed;
  }
  // A live process may have given space back meanwhile.
  const uint64_t stored = 512 * static_cast<uint64_t>(std::max(before.st_blocks, about.st_blocks));
  if (sum > kSpare + kMostGrowth * stored) {
    throw Error("its tables have " + std::to_string(sum) + " bytes, and the file " + std::to_string(stored));
  }
}

uint64_t BoxReader::count_now(const Array& array) const {
  uint64_t count = 0;
  return read(array.entry + offsetof(BoxEntry, count), &count, sizeof(count)) == sizeof(count) ? count : 0;
}

size_t BoxReader::read(uint64_t offset, void* to, size_t size) const {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = pread(file_, static_cast<char*>(to) + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError(errno, "cannot read the box", name_of_file(file_));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

const BoxReader::Array* BoxReader::newest(BoxKind kind, int device, uint32_t number, uint16_t array) const {
  const Array* newest = nullptr;
  for (const Array& each : arrays_) {
    if (each.kind != kind || each.device != device || each.array != array) continue;
    if (kind != BoxKind::ring && each.number != number) continue;
    // A ring that is being replaced has more than the one that will take its place.
    const auto age = [](const Array& of) { return std::pair(of.kind == BoxKind::ring ? of.count : 0, of.serial); };
    if (newest == nullptr || age(*newest) < age(each)) newest = &each;
  }
  return newest;
}

std::vector<std::string> BoxReader::names(BoxKind kind, int device, uint32_t number) const {
  const Array* const rows = newest(kind, device, number);
  const Array* const text = newest(kind, device, number, 1);
  if (rows == nullptr || text == nullptr) return {};
  const std::vector<char> bytes = items<char>(text, 0, text->count);
  std::vector<std::string> names;
  uint64_t left = bytes.size();  // all strings together: they lie one after another
  for (const InternTable::String& row : items<InternTable::String>(rows, 1, rows->count + 1)) {
    const bool is_whole = row.begin <= bytes.size() && row.size <= std::min(bytes.size() - row.begin, left);
    if (is_whole) left -= row.size;
    names.emplace_back(is_whole ? std::string(bytes.data() + row.begin, row.size) : std::string());
  }
  return names;
}

}  // namespace pytracer
