"""The schema of examples/cluster/kubernetes-job.yaml, and its containers as processes of this host."""
import os
import pathlib
import socket
import subprocess
import tempfile
import unittest

import kubernetes_validate
import yaml

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MANIFEST = SOURCE / "examples/cluster/kubernetes-job.yaml"
BUILD = pathlib.Path(os.environ.get("STARLING_BUILD", SOURCE / "build/release")).resolve()
STARLING = str(BUILD / "starling")
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
SMALL = ["--model", "mlp", "--set", "model.widths=[784,16,10]", "--set", "data.samples=256", "--set", "data.test_samples=32",
         "--steps", "6", "--threads", "1"]


def documents():
    with open(MANIFEST, encoding="utf-8") as f:
        return {d["kind"]: d for d in yaml.safe_load_all(f)}


class Kubernetes(unittest.TestCase):
    def test_the_manifest_fits_the_strict_schema(self):
        version = kubernetes_validate.latest_version()
        for kind, document in documents().items():
            with self.subTest(kind=kind, version=version):
                kubernetes_validate.validate(document, version, strict=True)

    def test_the_schema_finds_a_wrong_key(self):
        job = documents()["Job"]
        job["spec"]["completionsMode"] = job["spec"].pop("completionMode")
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)

    def test_names_and_numbers_agree(self):
        job, service = documents()["Job"], documents()["Service"]
        spec, pod = job["spec"], job["spec"]["template"]["spec"]
        container = pod["containers"][0]
        env = {e["name"]: e for e in container["env"]}
        self.assertEqual(spec["completionMode"], "Indexed")
        self.assertEqual(spec["completions"], spec["parallelism"])
        self.assertEqual(env["WORLD_SIZE"]["value"], str(spec["completions"]))
        self.assertEqual(env["RANK"]["valueFrom"]["fieldRef"]["fieldPath"], INDEX)
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        self.assertEqual(env["MASTER_ADDR"]["value"], f"{job['metadata']['name']}-0.{service['metadata']['name']}")
        self.assertEqual(service["spec"]["selector"].items() - spec["template"]["metadata"]["labels"].items(), set())
        volumes = {v["name"] for v in pod["volumes"]}
        for c in pod["containers"] + pod["initContainers"]:
            self.assertLessEqual({m["name"] for m in c["volumeMounts"]}, volumes)
        rule = spec["podFailurePolicy"]["rules"][0]["onExitCodes"]
        self.assertEqual((rule["containerName"], rule["values"]), (container["name"], [3, 6]))

    def test_its_containers_train_as_processes_of_this_host(self):
        job = documents()["Job"]["spec"]
        pod, ranks = job["template"]["spec"], 2
        container = pod["containers"][0]
        with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
            free.close()  # rank 0 listens there
            os.makedirs(f"{folder}/secret")
            os.makedirs(f"{folder}/key")
            pathlib.Path(folder, "secret/job.key").write_text(os.urandom(32).hex() + "\n", encoding="ascii")
            mounts = {m["mountPath"] for c in pod["initContainers"] + [container] for m in c["volumeMounts"]}

            def placed(word):
                for mount in mounts:
                    word = word.replace(mount + "/", folder + mount + "/")
                return word

            subprocess.run([placed(w) for w in pod["initContainers"][0]["command"]], check=True)
            words = [placed(w) for w in container["command"] + container["args"]]
            words = [STARLING, words[1], *SMALL, *words[words.index("--run-dir"):]]
            processes = []
            self.addCleanup(lambda: [process.kill() for process in processes])
            for rank in range(ranks):
                given = {e["name"]: e.get("value", str(rank)) for e in container["env"]}
                # The processes share one host, unlike the pods.
                given.update(WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                             MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), PATH=os.environ["PATH"])
                processes.append(subprocess.Popen(words, env=given, cwd=folder, stdout=subprocess.PIPE,
                                                  stderr=subprocess.PIPE, text=True))
            ended = [(*process.communicate(timeout=240), process.returncode) for process in processes]
            for out, err, status in ended:
                self.assertEqual(status, 0, out + err)
            self.assertTrue(os.path.isdir(f"{folder}/runs/train"))


if __name__ == "__main__":
    unittest.main()
