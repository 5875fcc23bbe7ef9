// What the server does with whole series, for the points that the page has itself.

/** Indices of the first, last, smallest and largest value of each of `pixels` columns (M4). xs are sorted. */
export function m4(xs: ArrayLike<number>, ys: ArrayLike<number | null>, pixels: number): number[] {
  const n = xs.length;
  if (n <= 4 * pixels) return Array.from({ length: n }, (_, k) => k);
  const from = xs[0]!;
  const scale = pixels / (xs[n - 1]! - from || 1);
  const kept: number[] = [];
  let begin = 0;
  while (begin < n) {
    const column = Math.min(pixels - 1, Math.floor((xs[begin]! - from) * scale));
    let end = begin;
    let low = -1;
    let high = -1;
    while (end < n && Math.min(pixels - 1, Math.floor((xs[end]! - from) * scale)) === column) {
      const y = ys[end];
      if (y !== null && y !== undefined) {
        if (low < 0 || y < ys[low]!) low = end;
        if (high < 0 || y > ys[high]!) high = end;
      }
      end++;
    }
    const four = [begin, low, high, end - 1].filter((k) => k >= 0).sort((a, b) => a - b);
    for (const k of four) if (kept[kept.length - 1] !== k) kept.push(k);
    begin = end;
  }
  return kept;
}

/** A debiased exponential moving average; gaps stay gaps and do not count. */
export function ema(ys: ArrayLike<number | null>, weight: number): (number | null)[] {
  const smooth: (number | null)[] = [];
  let sum = 0;
  let norm = 0;
  for (let k = 0; k < ys.length; k++) {
    const y = ys[k];
    if (y === null || y === undefined) {
      smooth.push(null);
      continue;
    }
    sum = weight * sum + (1 - weight) * y;
    norm = weight * norm + (1 - weight);
    smooth.push(sum / norm);
  }
  return smooth;
}

/** The place of the value nearest to `x` in sorted values; -1 if there is none. */
export function nearest(xs: ArrayLike<number>, x: number): number {
  let low = 0;
  let high = xs.length - 1;
  if (high < 0) return -1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle]! <= x) low = middle;
    else high = middle;
  }
  return Math.abs(xs[low]! - x) <= Math.abs(xs[high]! - x) ? low : high;
}
