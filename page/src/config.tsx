// The configuration and the settings of a run, as a list that can be filtered.

import { useState } from "preact/hooks";
import type { Facts, Plain } from "./api";
import { moment, isSecret, shown } from "./format";
import { Command, Empty, Name } from "./ui";

/** Nested values as "a/b": value. */
export function flat(value: Plain, prefix = ""): [string, Plain][] {
  if (value === null || typeof value !== "object" || Array.isArray(value) || isSecret(value))
    return prefix ? [[prefix, value]] : [];
  return Object.entries(value).flatMap(([name, each]) => flat(each, prefix ? `${prefix}/${name}` : name));
}

/** Most configurations are all in this one key. */
function unwrapped(config: Plain): Plain {
  const loop = isMapping(config) && Object.keys(config).length === 1 ? config["train_loop_config"] : undefined;
  return isMapping(loop) ? loop : config;
}

/** What is not shown elsewhere. */
function rest(settings: Plain): Plain {
  if (!isMapping(settings)) return settings;
  const { config: _, secrets: __, again: ___, ...others } = settings;
  return others;
}

const isMapping = (value: Plain | undefined): value is { [key: string]: Plain } =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function Pairs({ title, pairs }: { title: string; pairs: [string, Plain][] }) {
  if (!pairs.length) return null;
  return (
    <section>
      <h3>{title}</h3>
      <table class="plain pairs">
        <tbody>
          {pairs.map(([name, value]) => (
            <tr key={name}>
              <th scope="row">
                <Name text={name} />
              </th>
              <td>
                <Name text={shown(value)} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

export function Config({ facts }: { facts: Facts }) {
  const [words, set] = useState("");
  const [config, settings] = [flat(unwrapped(facts.config)), flat(rest(facts.settings))].map((pairs) =>
    pairs.filter(([name]) => name.toLowerCase().includes(words.toLowerCase())),
  );
  return (
    <div class="config">
      <div class="bar tools">
        <input
          type="search"
          data-filter
          aria-label="Filter"
          placeholder="Filter"
          value={words}
          onInput={(event) => set(event.currentTarget.value)}
        />
      </div>
      {facts.config === null ? <Empty>The configuration is not plain data, so it was not written down.</Empty> : null}
      <Pairs title="Configuration" pairs={config!} />
      <Pairs title="Settings" pairs={settings!} />
      <section>
        <h3>Attempts</h3>
        <table class="plain">
          <thead>
            <tr>
              <th class="right">Attempt</th>
              <th>Began</th>
              <th class="right">After iteration</th>
              <th class="right">Workers</th>
              <th>Driver</th>
            </tr>
          </thead>
          <tbody>
            {facts.attempts.map((each) => (
              <tr key={each.attempt}>
                <td class="right">{each.attempt + 1}</td>
                <td>{each.time ? moment(each.time) : "–"}</td>
                <td class="right">{each.start_index}</td>
                <td class="right">{each.world_size}</td>
                <td>
                  <Name text={each.hostname ? `${each.hostname}, process ${each.pid}` : "–"} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      <section>
        <h3>Files</h3>
        <Command text={facts.summary.path} />
        {facts.how_to_continue ? (
          <>
            <h3>How to continue</h3>
            <Command text={facts.how_to_continue} />
          </>
        ) : null}
      </section>
    </div>
  );
}
