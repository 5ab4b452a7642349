//! The grammar in the protocol's pages and the one in the code name the same entries, and agree on which may be left out.
#![allow(clippy::unwrap_used, reason = "a test fails where it can't go on")]

mod sample;

use std::collections::BTreeMap;
use zkdv_hash::Digest;
use zkdv_hash::batch::{self, Matrix};
use zkdv_hash::rolling::Base;
use zkdv_protocol::cbor::{self, Value};
use zkdv_protocol::membership::{CommittedUpdate, MembershipProof};
use zkdv_protocol::record::{Body, RecordType};

/// The rules of a CDDL file: names, and what stands after `=`.
fn rules(grammar: &str) -> BTreeMap<String, String> {
    let text: String = grammar
        .lines()
        .map(|line| line.split(';').next().unwrap_or_default().to_owned() + "\n")
        .collect();
    let mut rules = BTreeMap::<String, String>::new();
    let mut current = String::new();
    for line in text.lines() {
        match line.split_once(" = ") {
            Some((name, body)) if !name.starts_with([' ', '{', '/']) => {
                name.clone_into(&mut current);
                rules.insert(current.clone(), body.to_owned());
            }
            _ => rules.entry(current.clone()).or_default().extend([" ", line.trim()]),
        }
    }
    rules
}

/// Cuts at a separator that stands outside brackets and quotes.
fn cut(text: &str, separator: char) -> Vec<String> {
    let (mut parts, mut depth, mut quoted) = (vec![String::new()], 0, false);
    for letter in text.chars() {
        match letter {
            '"' => quoted = !quoted,
            '{' | '[' | '(' if !quoted => depth += 1,
            '}' | ']' | ')' if !quoted => depth -= 1,
            _ => {}
        }
        if letter == separator && depth == 0 && !quoted {
            parts.push(String::new());
        } else {
            parts.last_mut().unwrap().push(letter);
        }
    }
    parts
        .into_iter()
        .map(|part| part.trim().to_owned())
        .filter(|part| !part.is_empty())
        .collect()
}

fn inside<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    Some(text.strip_prefix(open)?.strip_suffix(close)?.trim())
}

/// An entry of a map: its key, whether it may be left out, and what it holds.
fn entries(map: &str) -> BTreeMap<String, (bool, String)> {
    let entry = |text: &String| {
        let (optional, text) = match text.strip_prefix("? ") {
            Some(rest) => (true, rest),
            None => (false, text.as_str()),
        };
        let (key, value) = text.split_once(':')?;
        Some((inside(key, "\"", "\"")?.to_owned(), (optional, value.trim().to_owned())))
    };
    cut(map, ',').iter().filter_map(entry).collect()
}

struct Comparison<'a> {
    rules: &'a BTreeMap<String, String>,
    record_type: RecordType,
    body: &'a Value,
    compared: usize,
}

impl Comparison<'_> {
    /// Compares a value in which everything is there that may be with what the grammar has for it.
    fn compare(&mut self, rule: &str, value: &Value, path: &mut Vec<String>) {
        let rule = self.rules.get(rule).map_or(rule, String::as_str);
        let choices = cut(rule, '/');
        match value {
            Value::Map(map) => {
                let Some(choice) = choices.iter().find_map(|choice| {
                    let inner = inside(choice, "{", "}")?;
                    let open = inner.starts_with(['*', '+']);
                    let given: Vec<_> = map.keys().map(|key| key.as_str().to_owned()).collect();
                    let mut known: Vec<_> = entries(inner).into_keys().collect();
                    known.sort_by_key(|key| (key.len(), key.clone()));
                    (open || given == known).then(|| (open, entries(inner)))
                }) else {
                    panic!(
                        "{} {}: {rule} has other entries than {map:?}",
                        self.record_type,
                        path.join(".")
                    );
                };
                let (open, entries) = choice;
                for (key, inner) in map {
                    if open {
                        continue;
                    }
                    let (optional, rule) = &entries[key.as_str()];
                    path.push(key.as_str().to_owned());
                    self.compare_absence(*optional, choices.len(), path);
                    self.compare(rule, inner, path);
                    path.pop();
                }
            }
            Value::Array(values) => {
                let element = choices.iter().find_map(|choice| inside(choice, "[", "]")).unwrap();
                let element = element.trim_start_matches(['*', '+', ' ']);
                // The first has everything in it; see the bodies.
                if let Some(first) = values.first() {
                    path.push("0".to_owned());
                    self.compare(element, first, path);
                    path.pop();
                }
            }
            _ => assert!(!rule.starts_with(['{', '[']), "{path:?}: {rule} is no {value:?}"),
        }
    }

    fn compare_absence(&mut self, optional: bool, choices: usize, path: &[String]) {
        if choices > 1 {
            return;
        }
        let accepted = Body::from_value(self.record_type, &without(self.body, path)).is_ok();
        // A challenger other than "transcript" has a key.
        let required_here = path.join(".") == "challenger.key";
        assert_eq!(
            accepted,
            optional && !required_here,
            "{} without {}",
            self.record_type,
            path.join(".")
        );
        self.compared += 1;
    }
}

fn without(value: &Value, path: &[String]) -> Value {
    let mut value = value.clone();
    let (last, outer) = path.split_last().unwrap();
    let mut place = &mut value;
    for step in outer {
        place = match place {
            Value::Map(map) => map.get_mut(&step.as_str().into()).unwrap(),
            Value::Array(values) => &mut values[step.parse::<usize>().unwrap()],
            _ => unreachable!(),
        };
    }
    let Value::Map(map) = place else { unreachable!() };
    map.remove(&last.as_str().into()).unwrap();
    value
}

#[test]
fn the_pages_and_the_code_have_the_same_grammar() {
    let grammar = include_str!("../../../docs/protocol/transcript.cddl");
    let rules = rules(grammar);
    let mut compared = 0;
    for body in sample::full_bodies() {
        let record_type = body.record_type();
        let value = body.to_value();
        let mut comparison = Comparison {
            rules: &rules,
            record_type,
            body: &value,
            compared: 0,
        };
        comparison.compare(&format!("{record_type}-body"), &value, &mut Vec::new());
        compared += comparison.compared;
    }
    assert!(compared > 90, "only {compared} entries were compared");
}

#[test]
fn the_pages_and_the_code_have_the_same_record_types_and_dtypes() {
    let rules = rules(include_str!("../../../docs/protocol/transcript.cddl"));
    let types: Vec<_> = cut(&rules["payload"], '/')
        .iter()
        .map(|choice| {
            cut(inside(choice, "{", "}").unwrap(), ',')[2]
                .trim_start_matches("3: ")
                .trim_matches('"')
                .to_owned()
        })
        .collect();
    assert_eq!(
        types,
        RecordType::ALL
            .iter()
            .map(|record_type| record_type.as_str())
            .collect::<Vec<_>>()
    );
    let dtypes: Vec<_> = cut(&rules["dtype"], '/')
        .iter()
        .map(|name| name.trim_matches('"').to_owned())
        .collect();
    assert_eq!(
        dtypes,
        zkdv_hash::Dtype::ALL
            .iter()
            .map(|dtype| dtype.name())
            .collect::<Vec<_>>()
    );
}

/// Compares the entries of a map, and of the maps inside of it, with those of a rule; returns how many maps there were.
fn compare_maps(rules: &BTreeMap<String, String>, rule: &str, item: cbor::Item<'_>) -> usize {
    match item {
        cbor::Item::Map(map) => {
            let mut known = entries(inside(rules[rule].trim(), "{", "}").unwrap());
            let claims = rules["claim"].trim().trim_matches(['(', ')']).replace("//", ",");
            let mut compared = 1;
            for (key, value) in map.iter() {
                let cbor::Item::Text(key) = key else { panic!("{key:?}") };
                let (_, inner) = known.remove(key).unwrap_or_else(|| entries(&claims)[key].clone());
                compared += compare_maps(rules, &inner, value);
            }
            assert!(known.is_empty(), "{rule} lacks {known:?}");
            compared
        }
        cbor::Item::Array(items) => {
            let rule = rules.get(rule).map_or(rule, String::as_str).trim();
            let element = inside(rule, "[", "]").unwrap().rsplit(' ').next().unwrap();
            items.iter().map(|item| compare_maps(rules, element, item)).sum()
        }
        _ => 0,
    }
}

#[test]
fn the_pages_and_the_code_have_the_same_proofs_of_membership() {
    let rules = rules(include_str!("../../../docs/protocol/membership.cddl"));
    let words: Vec<u32> = (0..600).map(|number| number * 2 + 1).collect();
    let matrix = Matrix::new(&words, 2, 300).unwrap();
    let run = Digest::ZERO;
    let commitment = batch::commit(&matrix, 1, &Base::from_root(&run)).unwrap();
    let update = CommittedUpdate {
        run,
        record: 1,
        update: 0,
        batch: commitment.digest(),
        rolling_window: 1,
    };
    // A row, a window of one, and a word between two blocks of the list.
    let compared = [&words[..300], &words[1..3], &[254]].map(|sought| {
        let encoded = MembershipProof::of_words(&update, &matrix, sought)
            .unwrap()
            .encode()
            .unwrap();
        compare_maps(&rules, "membership-proof", cbor::decode(&encoded).unwrap())
    });
    assert_eq!(compared, [3, 4, 5]);
}
