/** A small caching allocator, which records what it does as the events of a trace. */

export const ACTIONS = [
  "alloc",
  "free_requested",
  "free_completed",
  "segment_alloc",
  "segment_free",
  "segment_map",
  "segment_unmap",
  "snapshot",
  "oom",
  "workspace_snapshot",
  "annotate",
];
const [ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, MAP, UNMAP] = [
  0, 1, 2, 3, 4, 5, 6,
];
export const SNAPSHOT = 7;
export const OOM = 8;
export const KIB = 1024;
export const MIB = 1024 * KIB;
const PAGE_BYTES = 20 * MIB;

/** A segment, or all of one expandable segment. */
interface Part {
  address: number;
  size: number;
  small: boolean;
}

interface Hole {
  address: number;
  size: number;
  part: Part;
}

/** Records what an allocator does, in growing columns. */
export class Recorder {
  events: { action: number; row: number; time: number; stack: number; phase: number }[] = [];
  others: { address: number; size: number; pool: number; small: boolean }[] = [];
  blocks: {
    address: number;
    size: number;
    requested: number;
    stack: number;
    phase: number;
    kind: number;
    part: Part;
    alloc: number;
    requestedFree: number;
    free: number;
  }[] = [];
  steps: [number, number][] = [];
  phase = 0;
  spans: { name: string; depth: number; begin: number; end: number }[] = [];
  private pages = new Set<number>(); // the mapped pages of expandable segments
  private holes: Hole[] = []; // by address
  private next = 16 * MIB;
  private readonly expandable: boolean;
  reserved = 0;
  private readonly largePart = { address: PAGE_BYTES, size: 0, small: false };
  private readonly smallPart = { address: 40000 * PAGE_BYTES, size: 0, small: true };

  constructor(expandable: boolean) {
    this.expandable = expandable;
  }

  event(action: number, row: number, stack: number): void {
    const time = 1e6 + this.events.length * 3.5;
    this.events.push({ action, row, time, stack, phase: this.phase });
  }

  other(action: number, address: number, size: number, small: boolean, stack = 0): void {
    this.others.push({ address, size, pool: 0, small });
    this.event(action, this.others.length - 1, stack);
  }

  alloc(requested: number, stack: number, kind: number): number {
    const size = Math.max(512, Math.ceil(requested / 512) * 512);
    const small = size <= MIB;
    let best = -1;
    for (let i = 0; i < this.holes.length; i++) {
      const hole = this.holes[i]!;
      if (hole.size < size || hole.part.small !== small) continue;
      if (best < 0 || hole.size < this.holes[best]!.size) best = i;
    }
    if (best < 0) best = this.grow(size, small, stack);
    const hole = this.holes[best]!;
    const block = this.blocks.length;
    const [alloc, phase] = [this.events.length, this.phase];
    const { address, part } = hole;
    this.blocks.push({
      ...{ address, size, requested, stack, phase, kind, part, alloc },
      requestedFree: Infinity,
      free: Infinity,
    });
    if (hole.size === size) this.holes.splice(best, 1);
    else this.holes[best] = { address: address + size, size: hole.size - size, part };
    this.event(ALLOC!, block, stack);
    return block;
  }

  request(block: number, stack: number): void {
    this.blocks[block]!.requestedFree = this.events.length;
    this.event(FREE_REQUESTED!, block, stack);
  }

  complete(block: number, stack: number): void {
    const found = this.blocks[block]!;
    found.free = this.events.length;
    this.event(FREE_COMPLETED!, block, stack);
    this.insert(found.address, found.size, found.part);
  }

  free(block: number, stack: number): void {
    this.request(block, stack);
    this.complete(block, stack);
  }

  /** Give segments, or pages of expandable ones, without blocks back to the device. */
  emptyCache(): void {
    for (const hole of [...this.holes]) {
      const { part } = hole;
      if (!this.expandable) {
        if (part.size !== hole.size) continue;
        this.take(hole.address, hole.size);
        this.other(SEGMENT_FREE!, part.address, part.size, part.small);
      } else {
        const unit = part.small ? 2 * MIB : PAGE_BYTES;
        const begin = Math.ceil(hole.address / unit) * unit;
        const end = Math.floor((hole.address + hole.size) / unit) * unit;
        if (end <= begin) continue;
        for (let at = begin; at < end; at += unit) this.pages.delete(at);
        this.take(begin, end - begin);
        this.other(UNMAP!, begin, end - begin, part.small);
      }
    }
  }

  private grow(size: number, small: boolean, stack: number): number {
    const unit = small ? 2 * MIB : size < 10 * MIB ? PAGE_BYTES : 2 * MIB;
    if (!this.expandable) {
      const bytes = Math.ceil(size / unit) * unit;
      const address = this.next;
      this.next += bytes + 2 * MIB;
      const part = { address, size: bytes, small };
      this.reserved += bytes;
      this.other(SEGMENT_ALLOC!, address, bytes, small, stack);
      return this.insert(address, bytes, part);
    }
    // Two address ranges, one for small and one for large blocks, mapped page by page.
    const page = small ? 2 * MIB : PAGE_BYTES;
    const part = small ? this.smallPart : this.largePart;
    for (let at = part.address; ; at += page) {
      if (this.pages.has(at)) continue;
      this.pages.add(at);
      this.reserved += page;
      this.other(MAP!, at, page, small, stack);
      const index = this.insert(at, page, part);
      if (this.holes[index]!.size >= size) return index;
    }
  }

  /** Insert a hole, joined with its neighbours in the same segment; return its index. */
  private insert(address: number, size: number, part: Part): number {
    let low = 0;
    let high = this.holes.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.holes[middle]!.address < address) low = middle + 1;
      else high = middle;
    }
    const before = this.holes[low - 1];
    const after = this.holes[low];
    // Segments are 2 MiB apart, so that adjacent holes are always of one segment.
    const joins = before !== undefined && before.address + before.size === address;
    if (joins) {
      before.size += size;
      low -= 1;
    } else {
      this.holes.splice(low, 0, { address, size, part });
    }
    const found = this.holes[low]!;
    if (after !== undefined && found.address + found.size === after.address) {
      found.size += after.size;
      this.holes.splice(low + 1, 1);
    }
    return low;
  }

  private take(address: number, size: number): void {
    this.reserved -= size;
    const at = this.holes.findIndex(
      (hole) => hole.address <= address && address < hole.address + hole.size,
    );
    const hole = this.holes[at]!;
    const { part } = hole;
    const pieces: Hole[] = [];
    if (hole.address < address) {
      pieces.push({ address: hole.address, size: address - hole.address, part });
    }
    const end = hole.address + hole.size;
    if (address + size < end) {
      pieces.push({ address: address + size, size: end - address - size, part });
    }
    this.holes.splice(at, 1, ...pieces);
  }
}
