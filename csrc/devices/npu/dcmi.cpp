// libdcmi.so: the devices, and the memory that processes use on them. Names and signatures are
// those of Huawei's published DCMI reference. Each card has one device. The numbers of card,
// logical device and model device are the same; ASCEND_RT_VISIBLE_DEVICES has no effect here.
//
// This process is the only one. A process with a context on a device uses its allocated bytes and
// kContextBytes, and the device is larger than its capacity by the latter.
#include <unistd.h>

#include "devices/control.h"
#include "devices/memory.h"

using namespace simulated;

namespace {

constexpr int kOk = 0;
constexpr int kInvalidParameter = -8001;

// struct dcmi_proc_mem_info.
struct ProcessMemory {
  int process;
  unsigned long bytes;
};

bool is_device(int card, int chip) {
  return card >= 0 && card < settings().devices && chip == 0;
}

}  // namespace

extern "C" {

int dcmi_init() { return kOk; }

int dcmi_get_card_num_list(int* count, int* cards, int space) {
  *count = 0;
  while (*count < settings().devices && *count < space) {
    cards[*count] = *count;
    ++*count;
  }
  return kOk;
}

// The numbers of the other chips of a card: -1 stands for "none".
int dcmi_get_device_id_in_card(int card, int* devices, int* mcu, int* cpu) {
  *devices = 1;
  *mcu = -1;
  *cpu = -1;
  return is_device(card, 0) ? kOk : kInvalidParameter;
}

int dcmi_get_card_id_device_id_from_logicid(int* card, int* chip, unsigned logical) {
  *card = static_cast<int>(logical);
  *chip = 0;
  return is_device(*card, *chip) ? kOk : kInvalidParameter;
}

// Up to 32 processes. The real function counts all use of the device, including its own part.
int dcmi_get_device_resource_info(int card, int chip, ProcessMemory* processes, int* count) {
  if (!is_device(card, chip)) return kInvalidParameter;
  *count = in_use(card) ? 1 : 0;
  if (*count == 1) processes[0] = {getpid(), used_bytes(card) + kContextBytes};
  return kOk;
}

}  // extern "C"
