// When requests come and what they ask for: the same for the same seed, whatever answers them.

// A small generator with a state of 32 bits (mulberry32): numbers in [0, 1).
export function chance(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

// One seed for each tenant of a plan, by FNV-1a over its name.
export function seedOf(name, seed) {
  let hash = (2166136261 ^ seed) >>> 0;
  for (let i = 0; i < name.length; i++) {
    hash = Math.imul(hash ^ name.charCodeAt(i), 16777619) >>> 0;
  }
  return hash;
}

function exponential(random) {
  return -Math.log(1 - random());
}

function normal(random) {
  return Math.sqrt(2 * exponential(random)) * Math.cos(2 * Math.PI * random());
}

// Prompts are log-normal about the mean, some of them so many times as long. Always draws as often.
function promptTokens(shape, random) {
  const middle = Math.log(shape.prompt_tokens) - shape.sigma ** 2 / 2;
  const tokens = Math.floor(Math.exp(middle + shape.sigma * normal(random)));
  const times = random() < shape.long_ratio ? shape.long_times : 1;
  return Math.min(Math.max(4, tokens) * times, shape.longest_tokens);
}

// All arrivals of a tenant in order: {at_ms, prompt_tokens}. A Poisson process whose rate changes by
// phases (which add up where they overlap): unit intervals are laid along the expected number.
export function arrivals(tenant, capacityRps, untilS, seed) {
  const random = chance(seedOf(tenant.name, seed));
  const edges = new Set([0, untilS]);
  for (const phase of tenant.phases) {
    edges.add(Math.min(phase.from_s, untilS)).add(Math.min(phase.until_s, untilS));
  }
  const times = [...edges].sort((a, b) => a - b);
  const list = [];
  let left = exponential(random);
  for (let i = 0; i + 1 < times.length; i++) {
    const sum = tenant.phases
      .filter((phase) => phase.from_s <= times[i] && times[i] < phase.until_s)
      .reduce((total, phase) => total + phase.times, 0);
    const rate = sum * capacityRps;
    let at = times[i];
    while (rate > 0 && at + left / rate < times[i + 1]) {
      at += left / rate;
      list.push({ at_ms: at * 1000, prompt_tokens: promptTokens(tenant.shape, random) });
      left = exponential(random);
    }
    left -= (times[i + 1] - at) * rate;
  }
  return list;
}
