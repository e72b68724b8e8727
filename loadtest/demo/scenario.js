// Three tenants at constant arrival rates (an open model: slow answers do not slow arrivals).
// One custom metric point a request carries everything the report needs.
import http from 'k6/http';
import { Trend } from 'k6/metrics';

const plan = JSON.parse(__ENV.PLAN); // {url, seconds, timeout_s, tenants: {name: {key, rps, ...}}}
const request = new Trend('request', true);

export const options = {
  discardResponseBodies: true,
  scenarios: Object.fromEntries(
    Object.entries(plan.tenants).map(([name, tenant]) => [
      name,
      {
        executor: 'constant-arrival-rate',
        rate: tenant.rps,
        timeUnit: '1s',
        duration: `${plan.seconds}s`,
        preAllocatedVUs: Math.ceil(tenant.rps * (plan.timeout_s + 1)),
        maxVUs: Math.ceil(tenant.rps * (plan.timeout_s + 1)),
        gracefulStop: `${plan.timeout_s}s`,
        exec: 'ask',
        env: { TENANT: name },
      },
    ]),
  ),
};

function prompt(bytes) {
  return 'lorem ipsum '.repeat(Math.ceil(bytes / 12)).slice(0, bytes);
}

export function ask() {
  const tenant = plan.tenants[__ENV.TENANT];
  const body = JSON.stringify({
    model: 'demo',
    messages: [{ role: 'user', content: prompt(tenant.prompt_bytes) }],
    max_tokens: tenant.max_tokens,
  });
  const started = Date.now();
  const answer = http.post(`${plan.url}/v1/chat/completions`, body, {
    headers: { 'content-type': 'application/json', 'x-api-key': tenant.key },
    timeout: `${plan.timeout_s}s`,
  });
  request.add(answer.timings.duration, {
    tenant: __ENV.TENANT,
    code: String(answer.status),
    admission: answer.headers['X-Gpu-Admission'] || '',
    reason: answer.headers['X-Gpu-Reason'] || '',
    retry: answer.headers['Retry-After'] || '',
    started: String(started),
  });
}
