// What the ranks printed: one rank's log or all of them by time, followed while the run is alive.

import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, Refused, type Entry, type LogHits, type LogPart, type MergedLogs } from "./api";
import { bytes, counted, number } from "./format";
import { useKeys } from "./keys";
import { rethink, wishes, type LogsEvent } from "./live";
import { plainText } from "./text";
import { Empty, lineColour, Loading, Problem, theme } from "./ui";
import { choose, here, rankChoice } from "./url";
import { Virtual } from "./virtual";

const LINE = 18;
const PART_BYTES = 262_144;
/** Lines that are kept; the oldest are dropped, and can be loaded again. */
const MOST_LINES = 100_000;
const NEAR = 40;
/** Ranks whose output one stream brings; the server rejects more. */
const MOST_FOLLOWED = 256;

interface Line {
  rank: number;
  text: string;
}

/** The lines that are loaded, of one rank or of all. */
class Log {
  lines: Line[] = [];
  starts = new Map<number, number>();
  ends = new Map<number, number>();
  older = false;
  size = 0;
  loading = true;
  error: unknown = null;
  /** A place in the middle of the log that was jumped to: what comes after it is not here. */
  jumped = false;
  readonly version = signal(0);

  constructor(
    readonly run: string,
    readonly ranks: number[],
    readonly merged: boolean,
  ) {}

  async loadTail(): Promise<void> {
    this.jumped = false;
    this.lines = [];
    if (this.merged)
      await this.during(get<MergedLogs>("logs/merged", { run: this.run, max: PART_BYTES }), (part) => this.take(part));
    else
      await this.during(get<LogPart>("logs", { run: this.run, rank: this.rank, max: PART_BYTES }), (part) =>
        this.takePart(part),
      );
    rethink();
  }

  /** What was printed before the lines that are here; the number of lines that came in front. */
  async loadOlder(): Promise<number> {
    if (!this.older || this.loading) return 0;
    const before = this.lines.length;
    if (this.merged) {
      const starts = JSON.stringify(Object.fromEntries(this.starts));
      await this.during(get<MergedLogs>("logs/merged", { run: this.run, before: starts, max: PART_BYTES }), (part) =>
        this.take(part),
      );
    } else {
      const wanted = { run: this.run, rank: this.rank, before: this.starts.get(this.rank) ?? 0, max: PART_BYTES };
      await this.during(get<LogPart>("logs", wanted), (part) => this.takePart(part));
    }
    return this.lines.length - before;
  }

  /** What comes after a place that was jumped to. */
  async loadNewer(): Promise<void> {
    if (this.loading) return;
    const wanted = { run: this.run, rank: this.rank, start: this.ends.get(this.rank) ?? 0, max: PART_BYTES };
    await this.during(get<LogPart>("logs", wanted), (part) => {
      for (const line of linesOf(part.text, this.rank)) this.lines.push(line);
      this.ends.set(this.rank, part.end);
      this.size = part.size;
      this.jumped = part.end < part.size;
    });
    rethink();
  }

  async jump(offset: number): Promise<void> {
    this.lines = [];
    this.jumped = true;
    const wanted = { run: this.run, rank: this.rank, start: offset, max: PART_BYTES };
    await this.during(get<LogPart>("logs", wanted), (part) => {
      this.takePart({ ...part, older: offset > 0 });
      this.jumped = part.end < part.size;
    });
    rethink();
  }

  /** A piece that the stream brings. */
  add({ rank, start, end, text }: LogsEvent): void {
    const known = this.ends.get(rank) ?? 0;
    if (this.jumped || end <= known) return;
    if (start > known && start !== 0) {
      void this.loadTail(); // something in between is missing
      return;
    }
    this.ends.set(rank, end);
    this.size = Math.max(this.size, end);
    for (const line of linesOf(text, rank)) this.lines.push(line);
    if (this.lines.length > MOST_LINES) {
      this.lines.splice(0, this.lines.length - MOST_LINES);
      this.older = false; // their offsets are not known any more
    }
    this.version.value++;
  }

  private get rank(): number {
    return this.ranks[0] ?? 0;
  }

  private async during<T>(asked: Promise<T>, take: (part: T) => void): Promise<void> {
    this.loading = true;
    try {
      take(await asked);
      this.error = null;
    } catch (error) {
      this.error = error;
    }
    this.loading = false;
    this.version.value++;
  }

  private takePart(part: LogPart): void {
    const lines = linesOf(part.text, this.rank);
    const fresh = !this.lines.length;
    this.lines = fresh ? lines : [...lines, ...this.lines];
    this.starts.set(this.rank, part.start);
    if (fresh) this.ends.set(this.rank, part.end);
    this.older = part.older;
    this.size = part.size;
  }

  private take(part: MergedLogs): void {
    const lines = part.lines.map(({ rank, text }) => ({ rank, text: plainText(text) }));
    const fresh = !this.lines.length;
    this.lines = fresh ? lines : [...lines, ...this.lines];
    for (const [rank, offset] of Object.entries(part.starts)) this.starts.set(Number(rank), offset);
    if (fresh) for (const [rank, offset] of Object.entries(part.ends)) this.ends.set(Number(rank), offset);
    this.older = part.older;
  }
}

function linesOf(text: string, rank: number): Line[] {
  if (!text) return [];
  const plain = plainText(text);
  return (plain.endsWith("\n") ? plain.slice(0, -1) : plain).split("\n").map((line) => ({ rank, text: line }));
}

let shownLog: Log | null = null;

wishes.logs = () => {
  const log = shownLog;
  if (!log || log.loading || log.jumped) return [];
  return log.ranks.slice(0, MOST_FOLLOWED).map((rank) => ({ run: log.run, rank, offset: log.ends.get(rank) ?? 0 }));
};

wishes.text = (event) => {
  if (shownLog && shownLog.run === event.run && shownLog.ranks.includes(event.rank)) shownLog.add(event);
};

/** Begins with the rank `first`, unless the address names one. */
export function Logs({ entry, ranks, first }: { entry: Entry; ranks: number[]; first: number }) {
  const wanted = rankChoice.value;
  const merged = wanted === "all" && ranks.length > 1;
  const rank = [Number(wanted || first), first].find((each) => ranks.includes(each)) ?? ranks[0] ?? 0;
  const offset = Number(here.value.query.get("at") ?? NaN);
  const log = useMemo(() => new Log(entry.id, merged ? ranks : [rank], merged), [entry.id, merged, rank, ranks.join()]);
  useEffect(() => {
    shownLog = log;
    void (Number.isNaN(offset) || merged ? log.loadTail() : log.jump(offset));
    return () => {
      if (shownLog === log) shownLog = null;
      rethink();
    };
  }, [log, offset]);
  if (!ranks.length) return <Empty>No rank has printed anything yet.</Empty>;
  return (
    <div class="logs">
      <LogView entry={entry} log={log} ranks={ranks} choice={merged ? "all" : String(rank)} />
    </div>
  );
}

function LogView({ entry, log, ranks, choice }: { entry: Entry; log: Log; ranks: number[]; choice: string }) {
  theme.value;
  log.version.value;
  const box = useRef<HTMLDivElement>(null);
  const jumped = here.value.query.has("at");
  const [wanted, setFollow] = useState(true);
  const follow = wanted && !jumped;
  const words = here.value.query.get("find") ?? "";
  const bottom = () => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  };
  useEffect(() => {
    if (follow) bottom();
    else if (jumped && box.current && !log.loading) box.current.scrollTop = 0;
  }, [log, log.loading]);
  useEffect(() => {
    if (follow) bottom();
  }, [log.version.value, follow]);
  const goOn = () => {
    setFollow(true);
    choose({ at: "" });
  };
  const flip = () => (follow ? setFollow(false) : goOn());
  useKeys({ f: flip, G: goOn });
  const scrolled = (element: HTMLDivElement) => {
    const atEnd = element.scrollTop + element.clientHeight >= element.scrollHeight - NEAR;
    if (!atEnd && follow) setFollow(false);
    if (atEnd && !follow && !jumped) setFollow(true);
    if (atEnd && log.jumped) void log.loadNewer();
    if (element.scrollTop < NEAR && log.older && !log.loading)
      void log.loadOlder().then((added) => {
        element.scrollTop += added * LINE;
      });
  };
  const lower = words.toLowerCase();
  const width = String(Math.max(...ranks)).length;
  return (
    <>
      <div class="bar tools">
        <label class="choice">
          Rank
          <select
            aria-label="Rank"
            value={choice}
            onChange={(event) => choose({ rank: event.currentTarget.value, at: "" })}
          >
            {ranks.length > 1 ? <option value="all">all, by time</option> : null}
            {ranks.map((each) => (
              <option key={each} value={String(each)}>
                {each}
              </option>
            ))}
          </select>
        </label>
        <Finder run={entry.id} choice={choice} words={words} />
        <div class="chips">
          <button type="button" aria-pressed={follow} onClick={flip}>
            Follow
          </button>
        </div>
        <span class="hint">
          {counted(log.lines.length, "line")}
          {log.size ? ` of ${bytes(log.size)}` : ""}
          {log.older ? ", scroll up for more" : ""}
          {log.ranks.length > MOST_FOLLOWED ? `, only the first ${MOST_FOLLOWED} ranks are followed` : ""}
        </span>
      </div>
      {log.error ? <Problem error={log.error} /> : null}
      {log.loading && !log.lines.length ? <Loading what="the log" /> : null}
      {!log.loading && !log.lines.length && !log.error ? (
        <Empty>Nothing was printed{entry.alive ? " yet" : ""}.</Empty>
      ) : null}
      <Virtual
        box={box}
        count={log.lines.length}
        height={LINE}
        role="log"
        label="Log"
        class="text"
        onScroll={scrolled}
        row={(place) => {
          const line = log.lines[place];
          if (!line) return null; // the log was reloaded, and is shorter
          return (
            <div key={place} class={`line ${lower && line.text.toLowerCase().includes(lower) ? "hit" : ""}`}>
              {choice === "all" ? (
                <span class="rank" style={{ color: lineColour(line.rank) }}>
                  {String(line.rank).padStart(width)}
                </span>
              ) : null}
              {line.text || " "}
            </div>
          );
        }}
      />
    </>
  );
}

/** Searches whole logs on the server, also what is not loaded here. */
function Finder({ run, choice, words }: { run: string; choice: string; words: string }) {
  const [found, setFound] = useState<LogHits | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [text, setText] = useState(words);
  useEffect(() => {
    setError(null);
    if (!words) return setFound(null);
    const abort = new AbortController();
    get<LogHits>(
      "logs/search",
      { run, q: words, rank: choice === "all" ? null : choice, limit: 200 },
      abort.signal,
    ).then(setFound, (refused: unknown) => {
      if (refused instanceof Refused) setError(refused);
    });
    return () => abort.abort();
  }, [run, choice, words]);
  const find = (event: Event) => {
    event.preventDefault();
    choose({ find: text.trim() });
  };
  return (
    <form class="finder" onSubmit={find}>
      <input
        type="search"
        data-filter
        aria-label="Search the log"
        placeholder="Search the log"
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          if (!event.currentTarget.value) choose({ find: "" });
        }}
      />
      {error ? <Problem error={error} /> : null}
      {found ? (
        <details class="menu" open>
          <summary>
            {number(found.hits.length)} found{found.complete ? "" : ", but not everything was searched"}
          </summary>
          <div class="menu-body hits">
            {found.hits.map((hit) => (
              <button
                key={`${hit.rank} ${hit.offset}`}
                type="button"
                onClick={() => choose({ rank: String(hit.rank), at: String(hit.offset) })}
              >
                <span class="rank">{hit.rank}</span> {plainText(hit.text)}
              </button>
            ))}
          </div>
        </details>
      ) : null}
    </form>
  );
}
