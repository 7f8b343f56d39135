"""Make reference_epsilons.json: ε by Google's accountant, in an environment of its own.

python -m venv /tmp/check && /tmp/check/bin/pip install dp-accounting==0.6.0
/tmp/check/bin/python tests/privacy/reference_epsilons.py > tests/privacy/reference_epsilons.json
"""

import json
from importlib.metadata import version

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

DELTA = 1e-5
ORDERS = [*range(2, 65), 80, 96, 128, 192, 256, 512, 1024]  # whole, as ours are; Google's own begin at 1.1
CASES = [  # steps, rate, noise multiplier, δ
    *((steps, 1.0, noise, DELTA) for steps, noise in ((1, 1.0), (1, 0.5), (20, 1.0), (20, 3.0), (20, 5.0), (20, 20.0))),
    *((steps, 1.0, noise, DELTA) for steps, noise in ((100, 1.0), (100, 10.0), (300, 30.0), (1000, 20.0))),
    (20, 1.0, 5.0, 1e-3),
    (50, 1.0, 4.0, 1e-8),
    (3200, 32 / 500, 1.0, DELTA),
    (940, 32 / 1500, 1.0, DELTA),
    (10_000, 0.01, 1.0, DELTA),
    (1000, 0.02, 0.8, DELTA),
    (100, 0.1, 1.0, DELTA),
    (500, 0.05, 2.0, DELTA),
    (2000, 0.01, 1.0, 1e-6),
    (200, 0.3, 1.5, DELTA),
]


def main() -> None:
    found = []
    for steps, rate, noise, delta in CASES:
        event = GaussianDpEvent(noise) if rate == 1 else PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
        pld = PLDAccountant().compose(event, steps).get_epsilon(delta)
        rdp = RdpAccountant(ORDERS).compose(event, steps).get_epsilon(delta)
        found.append({"steps": steps, "rate": rate, "noise": noise, "delta": delta, "pld": pld, "rdp": rdp})
    print(json.dumps({"dp-accounting": version("dp-accounting"), "values": found}, indent=1))


if __name__ == "__main__":
    main()
