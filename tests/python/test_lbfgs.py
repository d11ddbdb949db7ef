"""`starling lbfgs` finds the minimum that scipy's L-BFGS-B finds: ridge logistic regression in fp64.

The objective differs by at most 1e-8 and each weight by at most 1e-6.
"""
import json
import unittest

import numpy
from scipy import optimize

from peer import STARLING, FolderTest, call

GAP, DIFFERENCE = 1e-8, 1e-6
# Samples, features, ridge and ranks.
PROBLEMS = ((500, 8, 1e-2, 1), (2000, 20, 1e-3, 2), (1500, 30, 1e-1, 3), (1000, 12, 1e-2, 4))


class Problem:
    def __init__(self, samples, features, ridge):
        random = numpy.random.default_rng(samples)
        self.x = random.normal(size=(samples, features)) * numpy.linspace(1, 0.2, features)
        hidden = random.normal(size=features)
        self.y = (random.random(samples) < 1 / (1 + numpy.exp(-self.x @ hidden - 0.3))).astype(float)
        self.ridge = ridge

    def write(self, path):
        lines = [",".join(map(repr, map(float, row))) + f",{int(label)}\n"
                 for row, label in zip(self.x, self.y)]
        path.write_text("".join(lines), encoding="ascii")

    def __call__(self, weights):
        """Returns the objective and its gradient."""
        w, z = weights[:-1], self.x @ weights[:-1] + weights[-1]
        error = 1 / (1 + numpy.exp(-z)) - self.y
        gradient = numpy.append(self.x.T @ error / len(z) + self.ridge * w, error.mean())
        return (numpy.logaddexp(0, z) - self.y * z).mean() + self.ridge / 2 * w @ w, gradient


class Lbfgs(FolderTest):
    def test_the_minimum_is_that_of_scipy(self):
        for samples, features, ridge, ranks in PROBLEMS:
            with self.subTest(samples=samples, ranks=ranks):
                problem = Problem(samples, features, ridge)
                problem.write(self.dir / "data.csv")
                out = self.dir / "weights.npy"
                shown = call(STARLING, "lbfgs", "--json", "-n", ranks, "--ridge", ridge,
                             self.dir / "data.csv", "--save-weights", out)
                result = json.loads(shown.splitlines()[-1])
                weights = numpy.load(out).ravel()
                peer = optimize.minimize(problem, numpy.zeros(features + 1), jac=True, method="L-BFGS-B",
                                         options={"ftol": 0, "gtol": 1e-10, "maxiter": 10000,
                                                  "maxfun": 100000})
                gap, difference = abs(result["objective"] - peer.fun), abs(weights - peer.x).max()
                print(f"{samples} samples, {ranks} ranks: gap {gap:.1e}, weights {difference:.1e}")
                self.assertLessEqual(gap, GAP)
                self.assertLessEqual(difference, DIFFERENCE)
                self.assertAlmostEqual(problem(weights)[0], result["objective"], delta=1e-12)


if __name__ == "__main__":
    unittest.main()
