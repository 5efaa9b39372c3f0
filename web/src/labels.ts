/** Places the labels of a picture: none covers another one, and none leaves the picture. */

export interface Box {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

export interface Placed extends Box {
  text: string;
  colour: string;
}

/** The height of a label. */
export const LABEL = 14;
const FONT = "600 11px system-ui, sans-serif";
/** The room at each side of a text. */
const PAD = 3;

/** Labels that are already placed, and the room for further ones. */
export class Labels {
  readonly placed: Placed[] = [];

  constructor(private readonly context: CanvasRenderingContext2D, private readonly bounds: Box) {}

  /** Return the width of a label with a text. */
  width(text: string): number {
    this.context.font = FONT;
    return this.context.measureText(text).width + 2 * PAD;
  }

  /**
   * Place a label at the first of some points that has room for it: its left upper corner. Without
   * room at any of them there is no label, and the result is false.
   */
  place(text: string, colour: string, points: Iterable<readonly [x: number, y: number]>): boolean {
    const width = this.width(text);
    for (const [left, top] of points) {
      const box = { left, top, right: left + width, bottom: top + LABEL };
      if (!this.isFree(box)) continue;
      this.placed.push({ ...box, text, colour });
      return true;
    }
    return false;
  }

  private isFree({ left, top, right, bottom }: Box): boolean {
    const { bounds } = this;
    return left >= bounds.left && right <= bounds.right && top >= bounds.top &&
      bottom <= bounds.bottom && !this.placed.some((one) =>
      left < one.right && right > one.left && top < one.bottom && bottom > one.top);
  }

  /** Write the labels that were placed on a ground that keeps them readable. */
  draw(context: CanvasRenderingContext2D, ground: string): void {
    context.font = FONT;
    context.textBaseline = "middle";
    for (const { left, top, right, bottom, text, colour } of this.placed) {
      context.globalAlpha = 0.8;
      context.fillStyle = ground;
      context.fillRect(left, top, right - left, bottom - top);
      context.globalAlpha = 1;
      context.fillStyle = colour;
      context.fillText(text, left + PAD, (top + bottom) / 2 + 0.5);
    }
  }
}
