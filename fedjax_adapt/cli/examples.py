"""The examples that the help of each command ends with."""

EXAMPLES = {
    "run": (
        "fedjax-adapt run --algorithm fedavg --rounds 100 --seed 1 --folder runs/mine",
        "fedjax-adapt run --dataset mnist --data-dir DIR --participation 0.1 --dry-run",
        "fedjax-adapt run --folder runs/mine --resume",
    ),
    "sweep": (
        "fedjax-adapt sweep SWEEP.toml --folder runs/lr",
        "fedjax-adapt sweep SWEEP.toml --folder runs/lr --shard 2/8 --resume",
        "fedjax-adapt sweep merge runs/lr",
    ),
    "tune": (
        "fedjax-adapt tune SPACE.toml --trials 64 --folder runs/tuned",
        "fedjax-adapt tune SPACE.toml --at-once 9 --halve 3",
        "fedjax-adapt tune SPACE.toml --folder runs/tuned --trials 128 --resume",
    ),
    "partition": (
        "fedjax-adapt partition --partition dirichlet --concentration 0.1",
        "fedjax-adapt partition --config run.toml --output partition.png",
    ),
    "compare": (
        "fedjax-adapt compare runs/mine runs/other --plot both.png",
        "fedjax-adapt compare runs/lr --base fedavg --target 0.9 0.95",
    ),
    "contributions": (
        "fedjax-adapt contributions runs/mine",
        "fedjax-adapt contributions runs/mine --reference shapley --orders 200",
    ),
    "report": (
        "fedjax-adapt report runs/mine runs/other --out report.html",
        "fedjax-adapt report runs/lr --overwrite",
    ),
    "replay": (
        "fedjax-adapt replay runs/mine",
        "fedjax-adapt replay runs/mine --round 3 --devices 1",
    ),
    "reproduce": (
        "fedjax-adapt reproduce list",
        "fedjax-adapt reproduce fedssg-table1 --scale smoke",
        "fedjax-adapt reproduce fedssg-table1 --scale cpu --dry-run",
    ),
    "doctor": (
        "fedjax-adapt doctor",
        "fedjax-adapt doctor --data-dir DIR",
    ),
    "completion": (
        "fedjax-adapt completion bash > "
        "~/.local/share/bash-completion/completions/fedjax-adapt",
        "fedjax-adapt completion zsh >> ~/.zshrc",
    ),
    "list": (
        "fedjax-adapt list",
        "fedjax-adapt list | grep fed",
    ),
}


def examples_of(command: str) -> str:
    """The examples that end the help of a command."""
    lines = "".join(f"  {line}\n" for line in EXAMPLES[command])
    return f"examples:\n{lines}"
