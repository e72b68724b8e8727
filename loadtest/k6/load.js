// One plan of load against an Envoy: an open model, so that slow answers do not slow arrivals down.
//
//   k6 run -e PLAN=overload-1.5x -e TARGET=http://127.0.0.1:8080 -e RATE=70 loadtest/k6/load.js
//
// PLAN    a file of loadtest/k6/plans without its end, or a path to one
// TARGET  the Envoy
// RATE    requests a second that the servers can serve at their best; a plan's rates are times this
// KEYS    tenant=key,tenant=key: API keys, in the place of those in the plan
// MODEL   the model that is asked for
// SLO_MS  the promise, end to end
// INPUT   of a KServe v2 model: NAME:DATATYPE:COLUMNS
// SEED    arrivals and prompts are the same for the same seed
//
// Each try is one line of JSON on the console (--console-output FILE --log-format raw), if LINES=1.
// One VU a tenant sends everything from its event loop, so that a thousand requests in flight need
// no thousand interpreters.
import http from 'k6/http';
import { Rate, Trend } from 'k6/metrics';
import { arrivals, chance, seedOf } from './lib/arrivals.js';
import { ask } from './lib/asks.js';
import { toldMs, waitMs } from './lib/retries.js';

const named = __ENV.PLAN || 'light';
const plan = JSON.parse(open(named.includes('/') ? named : `./plans/${named}.json`));
const target = (__ENV.TARGET || 'http://127.0.0.1:8080').replace(/\/$/, '');
const capacityRps = Number(__ENV.RATE || plan.capacity_rps);
const model = __ENV.MODEL || 'demo';
const input = __ENV.INPUT || 'features:FP32:16';
const seed = Number(__ENV.SEED || 1);
const lines = __ENV.LINES === '1';
const givenSloMs = Number(__ENV.SLO_MS || 0);
// A client leaves some time after the promise is broken, not before.
const patienceS = Math.max(plan.patience_s, (2 * givenSloMs) / 1000);
const keys = Object.fromEntries((__ENV.KEYS || '').split(',').filter(Boolean).map((pair) => {
  const at = pair.indexOf('=');
  return [pair.slice(0, at), pair.slice(at + 1)];
}));
const tenants = Object.fromEntries(plan.tenants.map((tenant) => [tenant.name, tenant]));
for (const name of Object.keys(keys)) {
  if (!(name in tenants)) throw new Error(`KEYS: the plan has no tenant ${name}`);
}

// Of all requests: served within the promise; of those let in: the same; of all: refused.
const good = new Rate('good');
const kept = new Rate('kept');
const refused = new Rate('refused');
const latency = new Trend('latency', true);
const ttft = new Trend('ttft', true);

const thresholds = { kept: ['rate>=0.97'] };
if (plan.innocent) thresholds[`good{tenant:${plan.innocent}}`] = ['rate>=0.99'];
if (plan.unrefused) thresholds.refused = ['rate==0'];

const longestS = Math.max(...plan.tenants.map((tenant) => tenant.gives_up_s)) + patienceS;

export const options = {
  scenarios: Object.fromEntries(
    plan.tenants.map((tenant) => [
      tenant.name,
      {
        executor: 'per-vu-iterations',
        vus: 1,
        iterations: 1,
        maxDuration: `${Math.ceil(plan.until_s + longestS + 5)}s`,
        exec: 'send',
        env: { TENANT: tenant.name },
      },
    ]),
  ),
  thresholds,
  systemTags: [],
  batchPerHost: 2000, // also how many idle connections are kept
  summaryTrendStats: ['p(50)', 'p(99)', 'max', 'count'],
};

export function setup() {
  const began_ms = Date.now() + 300;
  if (lines) console.log(JSON.stringify({ began_unix_ms: began_ms, seed, name: plan.name }));
  return { began_ms };
}

export function send(data) {
  const tenant = tenants[__ENV.TENANT];
  const due = arrivals(tenant, capacityRps, plan.until_s, seed);
  const jitter = chance(seedOf(`${tenant.name} retries`, seed));
  let number = 0;
  const next = () => {
    while (number < due.length && data.began_ms + due[number].at_ms <= Date.now() + 0.5) {
      const arrival = due[number];
      number += 1;
      attempt({ tenant, number, arrival, began_ms: data.began_ms, jitter }, 1);
    }
    if (number < due.length) {
      setTimeout(next, Math.max(0, data.began_ms + due[number].at_ms - Date.now()));
    }
  };
  next();
}

async function attempt(request, tries) {
  const { tenant, arrival } = request;
  const { path, body } = ask(tenant.shape, arrival.prompt_tokens, model, input);
  const streamed = tenant.shape.kind === 'stream';
  const startedMs = Date.now();
  const answer = await http.asyncRequest('POST', target + path, JSON.stringify(body), {
    headers: {
      'content-type': 'application/json',
      'x-api-key': keys[tenant.name] || tenant.key,
      'x-request-type': tenant.type,
      'x-loadtest-id': `${tenant.name}/${request.number}/${tries}`,
    },
    timeout: `${patienceS}s`,
    responseType: streamed ? 'text' : 'none',
  });
  const seen = look(request, tries, startedMs, answer, streamed);
  count(request, seen);
  if (lines) console.log(JSON.stringify(seen));
  if (!seen.refused) return;
  const wait = waitMs(tenant, tries, seen.told_ms, request.jitter);
  const givesUpMs = request.began_ms + arrival.at_ms + 1000 * tenant.gives_up_s;
  if (wait !== undefined && Date.now() + wait < givesUpMs) {
    setTimeout(() => attempt(request, tries + 1), wait);
  }
}

// One try as its client saw it. Code 0 is a client that left. Times of a try count from the moment it
// was sent, connecting included.
function look(request, tries, startedMs, answer, streamed) {
  const { timings, headers } = answer;
  const first = streamed && /"first_token_unix_ms": ?([0-9.]+)/.exec(answer.body || '');
  const dueMs = request.began_ms + request.arrival.at_ms;
  return {
    tenant: request.tenant.name,
    number: request.number,
    tries,
    at_ms: startedMs - request.began_ms,
    late_ms: tries === 1 ? startedMs - dueMs : 0,
    took_ms: timings.duration + timings.blocked + timings.connecting,
    code: answer.status,
    refused: answer.status === 429 || answer.status === 503,
    admission: headers['X-Gpu-Admission'] || '',
    reason: headers['X-Gpu-Reason'] || '',
    told_ms: toldMs(headers),
    ttft_ms: first ? Number(first[1]) - startedMs : undefined,
    prompt_tokens: request.arrival.prompt_tokens,
  };
}

function count(request, seen) {
  if (seen.at_ms < 1000 * plan.warmup_s) return;
  const tags = { tenant: request.tenant.name };
  const sloMs = givenSloMs || 1000 * (request.tenant.slo_s || plan.slo_s);
  const served = seen.code >= 200 && seen.code < 300;
  // A real engine does not tell in a stream when its first token left: then only the end counts.
  const early = !plan.ttft_s || seen.ttft_ms === undefined || seen.ttft_ms <= 1000 * plan.ttft_s;
  const inTime = served && seen.took_ms <= sloMs && early;
  good.add(inTime, tags);
  refused.add(seen.refused, tags);
  if (seen.refused) return;
  kept.add(inTime, tags);
  latency.add(seen.took_ms, tags);
  if (seen.ttft_ms !== undefined) ttft.add(seen.ttft_ms, tags);
}
