//! A few hosts to try things by hand: `hosts [OPTION...] [COMMAND...]` runs COMMAND (a shell) on
//! the first of some hosts that exist as long as it runs. `--help` lists the options.

use std::process::{Command, ExitCode};

use gaspi_tests::hosts::{Hosts, MOST, Options, enter_world};
use gaspi_tests::{Failed, Result};

const HELP: &str = "hosts [OPTION...] [COMMAND...]

Makes hosts, called ant, bee, cow, dog and so on, joined by a switch (10.77.0.1, ...,
fd77::1, ...), and runs COMMAND, or a shell, on the first. They end with it.

  -n N          so many hosts (2), at most 25
  --sshd        with ssh servers; GASPI_TEST_SSHD names a directory with usr/sbin/sshd where the
                machine has none
  --only-ipv4, --only-ipv6
  --docker      an interface docker0 with one and the same address on every host
  --debian      the own name means 127.0.1.1
  --rate MBIT   limits each host's rate
  --all         runs COMMAND on all hosts at once";

struct Choice {
    count: usize,
    options: Options,
    sshd: bool,
    all: bool,
    rate: Option<u32>,
    command: Vec<String>,
}

fn main() -> ExitCode {
    let Some(choice) = choose() else {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    };
    enter_world();
    match run(&choice) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("hosts: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn choose() -> Option<Choice> {
    let mut choice = Choice {
        count: 2,
        options: Options::default(),
        sshd: false,
        all: false,
        rate: None,
        command: Vec::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-n" => choice.count = arguments.next()?.parse().ok().filter(|count| *count <= MOST)?,
            "--sshd" => choice.sshd = true,
            "--only-ipv4" => choice.options.ipv6 = false,
            "--only-ipv6" => choice.options.ipv4 = false,
            "--docker" => choice.options.docker = true,
            "--debian" => choice.options.own_name_is_loopback = true,
            "--rate" => choice.rate = Some(arguments.next()?.parse().ok()?),
            "--all" => choice.all = true,
            option if option.starts_with('-') && option != "--" => return None,
            "--" => choice.command.extend(arguments.by_ref()),
            first => {
                choice.command.push(first.to_owned());
                choice.command.extend(arguments.by_ref());
            }
        }
    }
    if choice.command.is_empty() {
        choice.command.push("sh".to_owned());
    }
    Some(choice)
}

/// Whether all commands succeeded.
fn run(choice: &Choice) -> Result<bool> {
    let hosts = Hosts::new(choice.count, choice.options)?;
    if choice.sshd {
        hosts.start_sshd()?;
    }
    for number in 0..hosts.len() {
        if let Some(rate) = choice.rate {
            hosts.limit_rate(number, rate)?;
        }
    }
    let count = if choice.all { hosts.len() } else { 1 };
    let mut children = Vec::new();
    for host in hosts.iter().take(count) {
        let mut command = Command::new(&choice.command[0]);
        command.args(&choice.command[1..]);
        let child = host
            .spawn(&mut command)
            .map_err(|error| Failed(format!("cannot start {}: {error}", choice.command[0])))?;
        children.push(child);
    }
    let mut all_well = true;
    for mut child in children {
        all_well &= child.wait()?.success();
    }
    Ok(all_well)
}
