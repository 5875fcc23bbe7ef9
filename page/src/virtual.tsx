// Long lists, of which only what is on the screen is in the document.

import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const BEYOND = 8;

interface Props {
  count: number;
  height: number;
  row: (place: number) => ComponentChildren;
  label: string;
  role?: "list" | "rowgroup" | "log";
  class?: string;
  /** The row to keep on the screen. */
  focus?: number;
  /** Called with the first and the last row that are shown. */
  seen?: (first: number, last: number) => void;
  box?: RefObject<HTMLDivElement | null>;
  onScroll?: (element: HTMLDivElement) => void;
}

export function Virtual({
  count,
  height,
  row,
  label,
  role = "list",
  class: extra = "",
  focus,
  seen,
  box,
  onScroll,
}: Props) {
  const own = useRef<HTMLDivElement>(null);
  const view = box ?? own;
  const [top, setTop] = useState(0);
  const [room, setRoom] = useState(600);
  useLayoutEffect(() => {
    const element = view.current!;
    const watch = new ResizeObserver(() => setRoom(element.clientHeight));
    watch.observe(element);
    setRoom(element.clientHeight);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    const element = view.current;
    if (focus === undefined || focus < 0 || !element) return;
    if (focus * height < element.scrollTop) element.scrollTop = focus * height;
    else if ((focus + 1) * height > element.scrollTop + element.clientHeight)
      element.scrollTop = (focus + 1) * height - element.clientHeight;
  }, [focus]);
  const first = Math.max(0, Math.min(count - 1, Math.floor(top / height)) - BEYOND);
  const last = Math.min(count, Math.ceil((top + room) / height) + BEYOND);
  useEffect(() => seen?.(first, last), [first, last, count, seen]);
  const rows: ComponentChildren[] = [];
  for (let place = first; place < last; place++) rows.push(row(place));
  return (
    <div
      ref={view}
      class={`virtual ${extra}`}
      role={role}
      aria-label={label}
      tabIndex={0}
      onScroll={(event) => {
        setTop(event.currentTarget.scrollTop);
        onScroll?.(event.currentTarget);
      }}
    >
      <div class="virtual-all" style={{ height: `${count * height}px` }}>
        <div style={{ transform: `translateY(${first * height}px)` }}>{rows}</div>
      </div>
    </div>
  );
}
