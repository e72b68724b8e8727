// What clients do when they are refused.

// What an answer says of coming back, in milliseconds; undefined where it says nothing.
export function toldMs(headers) {
  if (headers['Retry-After-Ms'] !== undefined) return Number(headers['Retry-After-Ms']);
  if (headers['Retry-After'] !== undefined) return 1000 * Number(headers['Retry-After']);
  return undefined;
}

// How long a client waits before try number `tries + 1`; undefined when it gives up.
// Those who back off do as SDKs do that are told nothing: half a second, doubled up to eight, up to
// a quarter less by chance.
export function waitMs(tenant, tries, told, random) {
  switch (tenant.retries) {
    case 'obey':
      return told === undefined ? 1000 : told;
    case 'backoff':
      return Math.min(8000, 500 * 2 ** (tries - 1)) * (1 - 0.25 * random());
    case 'hammer':
      return 1000 * tenant.hammer_s;
    default:
      return undefined;
  }
}
