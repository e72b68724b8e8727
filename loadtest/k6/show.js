// What a plan would send, without sending it: one line of JSON for each arrival. The same variables
// as load.js, of which PLAN, RATE and SEED matter here.
import { arrivals } from './lib/arrivals.js';

const named = __ENV.PLAN || 'light';
const plan = JSON.parse(open(named.includes('/') ? named : `./plans/${named}.json`));
const capacityRps = Number(__ENV.RATE || plan.capacity_rps);

export default function () {
  for (const tenant of plan.tenants) {
    for (const arrival of arrivals(tenant, capacityRps, plan.until_s, Number(__ENV.SEED || 1))) {
      console.log(JSON.stringify({ tenant: tenant.name, ...arrival }));
    }
  }
}
