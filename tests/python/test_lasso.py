"""`starling lasso` finds the minimum that L-BFGS-B of scipy finds.

L-BFGS-B minimizes the smooth problem β = u − v with u, v ≥ 0. The objectives differ by at
most 1e-8 of their value.
"""
import json
import unittest

import numpy
from scipy.optimize import minimize

from peer import STARLING, FolderTest, call

DIFFERENCE = 1e-8
# Samples, features, share of λ_max, ranks and schedule.
PROBLEMS = ((80, 200, 0.1, 1, "strads"), (120, 300, 0.05, 2, "strads"), (100, 150, 0.2, 3, "active-set"))


def minimum_of(x, y, penalty):
    """Returns the least 1/(2n) |y − xβ − c|² + penalty |β|₁."""
    x, y = x - x.mean(axis=0), y - y.mean()
    samples, features = x.shape

    def objective(parts):
        residual = y - x @ (parts[:features] - parts[features:])
        slope = -(x.T @ residual) / samples
        value = residual @ residual / (2 * samples) + penalty * parts.sum()
        return value, numpy.concatenate([slope + penalty, penalty - slope])

    found = minimize(objective, numpy.zeros(2 * features), jac=True, method="L-BFGS-B",
                     bounds=[(0, None)] * (2 * features),
                     options={"maxiter": 100000, "maxfun": 1000000, "maxcor": 50, "ftol": 1e-15,
                              "gtol": 1e-10})
    return found.fun


class Lasso(FolderTest):
    def test_the_minimum_is_that_of_scipy(self):
        for samples, features, share, ranks, schedule in PROBLEMS:
            with self.subTest(samples=samples, ranks=ranks):
                draw = numpy.random.default_rng(samples)
                x = 0.9 ** 0.5 * numpy.repeat(draw.normal(size=(samples, features // 10)), 10, axis=1)
                x += 0.1 ** 0.5 * draw.normal(size=x.shape)
                y = x[:, ::25] @ draw.normal(size=features // 25 + (features % 25 > 0)) + 2
                y += draw.normal(size=samples)
                numpy.save(self.dir / "data.npy", numpy.column_stack([x, y]))
                out = self.dir / "weights.npy"
                shown = call(STARLING, "lasso", "--json", "-n", ranks, "--lambda-share", share, "--schedule",
                             schedule, "--tolerance", 1e-11, self.dir / "data.npy", "--save-weights", out)
                result = json.loads(shown.splitlines()[-1])
                minimum, found = minimum_of(x, y, result["lambda"]), numpy.load(out).ravel()
                print(f"{schedule}, {ranks} ranks: {abs(result['objective'] - minimum) / minimum:.1e}")
                self.assertLessEqual(abs(result["objective"] - minimum), DIFFERENCE * minimum)
                weights, residual = found[:-1], y - x @ found[:-1] - found[-1]
                objective = residual @ residual / (2 * samples) + result["lambda"] * abs(weights).sum()
                self.assertAlmostEqual(objective, result["objective"], delta=1e-10)


if __name__ == "__main__":
    unittest.main()
