//! `gaspi-bench info` as a person and as a script meet it. What it finds depends on the machine.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

fn info(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaspi-bench"));
    command.arg("info").args(arguments).stdin(Stdio::null());
    command.env_remove("GASPI_BIND").env_remove("GASPI_LIBRARY");
    // Whatever devices this machine has.
    command.env("GASPI_IBVERBS_LIB", "/no/such/libibverbs.so");
    command.envs(variables.iter().copied());
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn objects(output: &Output) -> Vec<Value> {
    text(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn topic<'v>(objects: &'v [Value], name: &str) -> &'v Value {
    objects.iter().find(|object| object["topic"] == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn each_line_of_json_is_a_finding() {
    let output = info(&["--json"], &[]);
    assert!(output.status.success(), "{output:?}");
    let objects = objects(&output);
    for object in &objects {
        for key in ["area", "topic", "state", "value", "reason", "remedy"] {
            assert!(object[key].is_string(), "{key}: {object}");
        }
        let state = object["state"].as_str().unwrap();
        assert!(["fact", "usable", "limited", "not usable"].contains(&state), "{object}");
        if state.starts_with("limited") || state.starts_with("not") {
            assert_ne!(object["reason"], "", "{object}");
            assert_ne!(object["remedy"], "", "{object}");
        }
    }
    for name in [
        "version",
        "library",
        "reductions",
        "processor",
        "usable cores",
        "NUMA nodes",
        "binding",
        "machine",
        "open files",
        "huge pages",
        "membarrier",
        "cross-memory attach",
        "TCP",
        "verbs",
    ] {
        topic(&objects, name);
    }
    assert_eq!(topic(&objects, "shared memory")["state"], "usable");
    // Where there is no network, there is no address to offer.
    let tcp = topic(&objects, "TCP");
    assert!(tcp["state"] == "usable" || tcp["state"] == "limited", "{tcp}");
    let verbs = topic(&objects, "verbs");
    assert_eq!((&verbs["state"], &verbs["value"]), (&"not usable".into(), &"no library".into()));
}

#[test]
fn the_table_aligns_and_fits_a_terminal() {
    let output = info(&[], &[]);
    assert!(output.status.success(), "{output:?}");
    let table = text(&output);
    let areas: Vec<&str> =
        table.lines().filter(|line| !line.is_empty() && !line.starts_with(' ')).collect();
    assert_eq!(areas, ["build", "machine", "cores", "memory", "kernel", "transports"]);
    let column = |topic: &str, word: &str| {
        table.lines().find(|line| line.starts_with(&format!("  {topic}"))).unwrap().find(word)
    };
    assert_eq!(column("shared memory", "usable"), column("verbs", "not usable"), "{table}");
    // Only a single word may be wider, as paths are.
    let wide = |line: &&str| line.chars().count() > 100 && line.trim().contains(' ');
    assert_eq!(table.lines().find(wide), None, "{table}");
}

#[test]
fn binding_and_library_are_those_of_this_process() {
    let variables = [("GASPI_BIND", "core:5"), ("GASPI_LIBRARY", "/no/such/libgaspi.so")];
    let objects = objects(&info(&["--json"], &variables));
    assert_eq!(topic(&objects, "binding")["value"], "core:5");
    let library = topic(&objects, "library");
    assert_eq!(library["state"], "not usable");
    assert!(library["remedy"].as_str().unwrap().contains("install"), "{library}");
}

#[test]
fn each_port_of_a_device_has_a_row_with_its_reason() {
    let mock = gaspi_mock_card::MockCard::load().expect("the mock card has been built");
    let library = mock.path().to_str().unwrap();
    let rows = |variables: &[(&str, &str)]| {
        let mut all = vec![("GASPI_IBVERBS_LIB", library)];
        all.extend(variables);
        let found = objects(&info(&["--json"], &all));
        found.into_iter().filter(|object| object["topic"] == "verbs").collect::<Vec<Value>>()
    };
    let told = |row: &Value, state: &str, words: &[&str]| {
        let text = row.to_string();
        assert_eq!(row["state"], state, "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
    };
    let two = ("GASPI_MOCK_OPTIONS", "devices=2");
    let found = rows(&[two]);
    assert_eq!(found.len(), 2, "{found:?}");
    told(&found[0], "usable", &["_0, port 1: active, Ethernet, GID ::ffff:10.", "\"used: "]);
    told(&found[1], "usable", &["_1, port 1: active", "\"not used: as good as"]);
    let found = rows(&[("GASPI_MOCK_OPTIONS", "transport=1")]);
    told(&found[0], "not usable", &["iWARP", "docs/rdma.md"]);
    let found = rows(&[("GASPI_MOCK_OPTIONS", "port_up=0")]);
    told(&found[0], "not usable", &["port 1 is not active"]);
    let found = rows(&[two, ("GASPI_IB_DEVICE", "nothing")]);
    told(&found[2], "not usable", &["a variable is wrong", "\\\"nothing\\\"", "mock"]);
    let found = rows(&[two, ("GASPI_IB_SL", "99")]);
    assert_eq!(found.len(), 1, "{found:?}");
    told(&found[0], "not usable", &["GASPI_IB_SL is 99", "0 to 15"]);
    let found = rows(&[("GASPI_MOCK_OPTIONS", "devices=0")]);
    told(&found[0], "not usable", &["no device"]);
}
