"""`starling mcmc` finds the posterior that numpy computes.

Logistic regression agrees with importance sampling in numpy: means within 0.15 posterior deviations,
deviations within 10 %.
"""
import json
import unittest

import numpy

from peer import STARLING, FolderTest, call


def log_posterior(x, y, ridge, weights):
    """Returns the logarithm of the posterior of each row of weights."""
    z = weights[:, :-1] @ x.T + weights[:, -1:]
    return (y * z - numpy.logaddexp(0, z)).sum(axis=1) - ridge / 2 * (weights**2).sum(axis=1)


class Mcmc(FolderTest):
    def problem(self):
        random = numpy.random.default_rng(3)
        x = random.normal(size=(4000, 2))
        y = (random.random(4000) < 1 / (1 + numpy.exp(-x @ [0.4, -0.3] - 0.2))).astype(float)
        lines = [f"{a!r},{b!r},{int(label)}\n" for (a, b), label in zip(x.tolist(), y)]
        (self.dir / "data.csv").write_text("".join(lines), encoding="ascii")
        return x, y

    def test_the_moments_are_those_of_importance_sampling(self):
        x, y = self.problem()
        for sampler, draws in (("hmc", 5000), ("random-walk", 20000)):
            out = self.dir / "draws.npy"
            words = ["-n", 2, "--sub-posteriors", 4, "--sampler", sampler, "--draws", draws, "--warmup", 2000]
            shown = call(STARLING, "mcmc", "--json", *words, self.dir / "data.csv", "--save-draws", out)
            result = json.loads(shown.splitlines()[-1])
            self.assertEqual(result["sampling_bytes"], 0)
            mean, covariance = numpy.array(result["mean"]), numpy.array(result["covariance"]).reshape(3, 3)
            found = numpy.load(out)
            self.assertEqual(found.shape, (draws, 3))
            deviation = numpy.sqrt(numpy.diag(covariance))
            self.assertLess(abs((found.mean(axis=0) - mean) / deviation).max(), 5 / numpy.sqrt(draws))
            random = numpy.random.default_rng(1)
            points = random.multivariate_normal(mean, 1.5 * covariance, size=20000)
            offset = points - mean
            proposal = -0.5 * (offset @ numpy.linalg.inv(1.5 * covariance) * offset).sum(axis=1)
            logs = log_posterior(x, y, 1.0, points) - proposal
            weights = numpy.exp(logs - logs.max())
            weights /= weights.sum()
            exact = weights @ points
            spread = numpy.sqrt(weights @ (points - exact)**2)
            mean_error = abs((mean - exact) / spread).max()
            deviation_error = abs(deviation / spread - 1).max()
            print(f"{sampler}: means within {mean_error:.3f} deviations, deviations within "
                  f"{deviation_error:.3f}")
            self.assertLess(mean_error, 0.15)
            self.assertLess(deviation_error, 0.1)


if __name__ == "__main__":
    unittest.main()
