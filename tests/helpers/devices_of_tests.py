"""On which of the four simulated accelerators each test runs, and why.

A test runs on each version if torch's own code decides what it shows: the binary interface of a
hook, the events of the allocator, its settings, the format of its snapshots. It runs on one version
of each backend if only the backend matters, and once, on CUDA, if it shows something of pytracer's
own code that needs some accelerator. What takes long, and builds on what other tests show of each
version or backend, runs on each only in `make test-long`: on each version, the short form has the
hook's binary interfaces, the events, the files and the simulator's rules. On a real device, all
tests run.
"""

from amount import LONG

EACH_VERSION, EACH_BACKEND, ONCE = "each version", "each backend", "once"
EACH_VERSION_IN_LONG = EACH_VERSION if LONG else EACH_BACKEND
EACH_BACKEND_IN_LONG = EACH_BACKEND if LONG else ONCE
EACH_VERSION_OR_ONCE = EACH_VERSION if LONG else ONCE

FIRST_VERSIONS = {"cuda": "2.12.1", "npu": "2.13.0"}
"""The version of torch, by backend, on which the tests of each backend run."""

WHERE = {
    "test_simulated_memory": (EACH_VERSION_IN_LONG, "the functions that torch calls of a driver"),
    "test_simulated_processes": (EACH_BACKEND, "the libraries of the simulated driver"),
    # Of the same code, and test_the_environment_configures_the_devices reads them on each backend.
    "test_simulated_processes::test_busy_from_the_start": (EACH_BACKEND_IN_LONG, "settings"),
    "test_simulated_work": (EACH_VERSION_IN_LONG, "the functions that torch calls of a driver"),
    "test_as_torchs_recorder": (EACH_VERSION_IN_LONG, "the functions of torch's recorder"),
    "test_attach": (EACH_VERSION_IN_LONG, "the hook's binary interface"),
    # Which devices the tracers of each backend have is in test_autostart.
    "test_attach::test_devices_that_become_visible_late": (EACH_VERSION_OR_ONCE, "devices"),
    "test_autostart": (EACH_BACKEND, "how the backend is imported"),
    "test_autostart::test_tracing_and_the_patch_are_separate_switches": (
        EACH_BACKEND_IN_LONG,
        "two variables",
    ),
    "test_block_categories": (ONCE, "rules of the analysis"),
    "test_corpus": (EACH_BACKEND, "rules of the analysis"),
    "test_cuts": (EACH_BACKEND, "the allocator's lock while a snapshot is taken"),
    "test_dry_run": (ONCE, "processes"),
    "test_dry_run::test_a_program_that_fits": (EACH_BACKEND, "what the simulated devices lack"),
    "test_dry_run::test_one_of_many_ranks": (EACH_BACKEND, "the same"),
    "test_dry_run::test_values_that_a_thread_without_python_reads": (EACH_BACKEND, "the same"),
    "test_experiment": (EACH_BACKEND_IN_LONG, "the backend's statistics"),
    "test_experiment::test_a_failed_run_does_not_stop_the_experiment": (ONCE, "processes"),
    "test_experiment::test_an_interrupted_experiment": (ONCE, "processes"),
    "test_experiment::test_a_typo_is_reported_immediately": (ONCE, "options"),
    "test_experiment::test_ranks": (ONCE, "processes"),
    "test_experiment::test_a_function": (ONCE, "processes"),
    "test_fit_programs": (EACH_VERSION_OR_ONCE, "the allocator's rules, and the kernels' requests"),
    "test_forward_stacks": (EACH_VERSION, "the autograd library's binary interface"),
    (
        "test_forward_stacks::"
        "test_without_the_library_activations_are_known_by_the_thread_that_freed_them"
    ): (EACH_VERSION_OR_ONCE, "rules of the categories"),
    "test_fsdp_example": (ONCE, "an example"),
    "test_gauges": (ONCE, "the gauges' own code"),
    "test_generated_code": (ONCE, "the frame walk"),
    "test_gil": (EACH_BACKEND, "which locks the allocator holds"),
    "test_hardware": (ONCE, "a script"),
    "test_hidden_oom": (ONCE, "an error of CUDA's allocator"),
    "test_history": (EACH_BACKEND, "the allocator's order of events"),
    "test_killed": (EACH_BACKEND, "the events of the backend's hook"),
    "test_oom": (EACH_VERSION, "the observer of out-of-memory errors"),
    "test_oom::test_the_number_of_snapshots_is_limited": (ONCE, "files"),
    "test_oom::test_a_dump_that_fails": (EACH_BACKEND, "exceptions in the observer"),
    "test_oom::test_the_log_explains_the_out_of_memory": (EACH_BACKEND, "the device's totals"),
    "test_oom::test_an_explanation_that_is_not_possible": (ONCE, "the log"),
    "test_oom::test_a_log_that_fails": (EACH_BACKEND, "exceptions in the observer"),
    "test_owners": (EACH_BACKEND, "the backend's allocators of workspaces and caches"),
    "test_parity": (EACH_VERSION, "the events, next to torch's own recorder"),
    "test_parity_processes": (EACH_VERSION_IN_LONG, "the events, next to torch's own recorder"),
    "test_pinned_memory": (EACH_VERSION, "the interface of the allocator of pinned memory"),
    "test_pytest_plugin": (ONCE, "the plugin's own code"),
    "test_ready_hooks": (EACH_VERSION, "the hooks of the wheel"),
    "test_ready_hooks::test_the_demo_runs_without_a_compiler": (EACH_VERSION_OR_ONCE, "hooks"),
    "test_recommend": (EACH_BACKEND_IN_LONG, "the allocator's settings"),
    "test_rlhf_example": (ONCE, "an example"),
    "test_saved_tensors": (EACH_VERSION, "what nodes show of the tensors that they keep"),
    "test_saved_tensors::test_what_compiled_code_keeps_for_its_backward_pass": (
        EACH_VERSION_OR_ONCE,
        "the nodes of compiled code",
    ),
    "test_settings": (EACH_VERSION_IN_LONG, "the allocator's settings and their parser"),
    "test_refused_settings": (EACH_VERSION_IN_LONG, "the allocator's settings and their parser"),
    "test_settings_of_processes": (EACH_VERSION_OR_ONCE, "the settings and their parser"),
    "test_settings_of_programs": (EACH_BACKEND_IN_LONG, "the allocator's settings"),
    "test_simulated_recordings": (EACH_BACKEND_IN_LONG, "the allocator's rules"),
    "test_simulated_recordings::test_a_recording_from_an_empty_allocator": (
        EACH_VERSION_IN_LONG,
        "the allocator's rules, which change between versions",
    ),
    "test_simulator": (EACH_VERSION, "the allocator's rules, which change between versions"),
    "test_simulator::test_public_reports": (ONCE, "reports on one version"),
    "test_simulator::test_torch_has_so_many_streams": (ONCE, "a fact of CUDA's streams"),
    "test_skill": (ONCE, "a page and rules of the analysis"),
    "test_snapshot": (EACH_VERSION, "the format of torch's snapshots"),
    "test_patched_functions": (EACH_VERSION_IN_LONG, "the functions of torch's recorder"),
    "test_patched_sessions": (EACH_VERSION_IN_LONG, "the functions of torch's recorder"),
    "test_torchtitan_and_megatron": (EACH_BACKEND_IN_LONG, "the frameworks of each backend"),
    "test_truth": (ONCE, "rules of the analysis"),
    "test_training": (EACH_BACKEND, "the allocator's events in a training"),
    "test_verdicts": (EACH_BACKEND_IN_LONG, "the backend's errors"),
    "test_verdicts::test_random_programs": (ONCE, "rules of the analysis"),
    "test_verdicts::test_how_far_a_forward_pass_was": (ONCE, "rules of the analysis"),
    "test_verdicts::test_how_far_an_optimizer_was": (ONCE, "rules of the analysis"),
    "test_verl_jobs": (EACH_BACKEND_IN_LONG, "verl, which is installed once for each backend"),
    "test_verl_jobs::test_verls_workers_under_ray": (ONCE, "verl's processes"),
    "test_verl_jobs::test_verls_steps_under_ray": (ONCE, "verl's processes"),
    "test_verl_jobs::test_the_document_describes_this_verl": (ONCE, "a page"),
    "test_verl_profiler": (EACH_BACKEND_IN_LONG, "verl, which is installed once for each backend"),
    "test_windows": (EACH_BACKEND, "the devices' peaks"),
    "test_workspaces": (EACH_VERSION_IN_LONG, "torch's list of cuBLAS's workspaces"),
}
"""The tests by module, or module and function, which comes first; and what decides."""


def runs_here(module: str, function: str, backend: str, version: str) -> bool:
    """Return whether a test runs on the simulated devices of a version of torch."""
    place, _ = WHERE.get(f"{module}::{function}") or WHERE[module]
    if place == ONCE and backend != "cuda":
        return False
    return place == EACH_VERSION or version == FIRST_VERSIONS[backend]
