//! Every case of two trees, small.

use amalgam_engine::merge::{ContestedFile, Verdict, WholeSide};
use amalgam_engine::{Error, MergeContents, NoContents, Result, Store, TreePath};

use crate::kit::{self, BothAfterEachOther, clean, conflicts, merge, merged, tree};

#[test]
fn what_one_side_did_is_done() {
    clean("a=1", "a=2", "a=1", "a=2");
    clean("a=1", "a=1 b=1", "a=1", "a=1 b=1");
    clean("a=1 b=1", "a=1", "a=1 b=1", "a=1");
    clean("a=1", "d/a=1", "a=1", "d/a=1");
    clean("a=1", "a=1 e/", "a=1", "a=1 e/");
    clean("a=1 e/", "a=1", "a=1 e/", "a=1");
    clean("a=1", "a->x", "a=1", "a->x");
    clean("a=1", "a|", "a=1", "a|");
    clean("d/a=1 d/b=2", "d=1", "d/a=1 d/b=2", "d=1");
    clean("d=1", "d/a=1 d/b=2", "d=1", "d/a=1 d/b=2");
}

#[test]
fn what_both_did_alike_is_done_once() {
    clean("a=1", "a=2", "a=2", "a=2");
    clean("a=1", "b=1", "b=1", "b=1");
    clean("a=1", "", "", "");
    clean("", "a=1", "a=1", "a=1");
    clean("", "a->x", "a->x", "a->x");
    clean("d/a=1 d/b=1", "e/a=1 e/b=1", "e/a=1 e/b=1", "e/a=1 e/b=1");
}

#[test]
fn changes_in_different_places_come_together() {
    clean("a=1 b=1", "a=2 b=1", "a=1 b=2", "a=2 b=2");
    clean("d/a=1", "d/a=1 d/b=1", "d/a=1 d/c=1", "d/a=1 d/b=1 d/c=1");
    clean("", "n/a=1", "n/b=1", "n/a=1 n/b=1");
    clean("a=1 b=1", "b=1", "a=1", "");
}

#[test]
fn contents_that_both_changed_are_a_conflict() {
    conflicts("a=1", "a=2", "a=3", "a<2|1|3>", "contents a");
    conflicts("a->x", "a->y", "a->z", "a<->y|->x|->z>", "contents a");
}

#[test]
fn what_both_added_differently_is_a_conflict() {
    conflicts("", "a=1", "a=2", "a<1|-|2>", "both added a");
    conflicts("", "a=1", "a->x", "a<1|-|->x>", "both added a");
    conflicts("", "a->y", "a->x", "a<->y|-|->x>", "both added a");
    conflicts("", "a|", "a=1", "a<||-|1>", "both added a");
}

#[test]
fn what_one_changed_and_the_other_removed_is_a_conflict() {
    conflicts("a=1", "a=2", "", "a<2|1|->", "changed and removed a");
    conflicts("a=1", "", "a=2", "a<-|1|2>", "changed and removed a");
    conflicts("d/a=1 d/b=1", "", "d/a=2 d/b=1", "d/a<-|1|2>", "changed and removed d/a");
}

#[test]
fn what_changed_follows_what_was_renamed() {
    let long = "one,two,three,four,five,six,seven,eight";
    clean(&format!("a={long}"), &format!("b={long}"), "a=other", "b=other");
    clean(&format!("a={long} k=1"), &format!("d/b={long} k=1"), &format!("a+={long} k=1"), &format!("d/b+={long} k=1"));
}

#[test]
fn a_rename_by_one_and_another_by_the_other_keeps_both_names() {
    conflicts("a=1", "b=1", "c=1", "b=1 c=1", "moved twice b a c");
}

#[test]
fn both_names_of_what_was_renamed_twice_follow_directories_that_moved() {
    let (base, moved) = ("a=1 d/b=2 d/c=3", "e/b=2 e/c=3 y=1");
    conflicts(base, "d/b=2 d/c=3 d/x=1", moved, "e/b=2 e/c=3 e/x=1 y=1", "moved twice e/x a y d/x");
    conflicts(base, moved, "d/b=2 d/c=3 d/x=1", "e/b=2 e/c=3 e/x=1 y=1", "moved twice y a d/x e/x");
    // What we changed in it goes along.
    conflicts("a=1 d/b=2 d/c=3", "d/b=2 d/c=4 d/x=1", moved, "e/b=2 e/c=4 e/x=1 y=1", "moved twice e/x a y d/x");
    // Both are led to one place: then they agree.
    let base = "a=1 d/b=2 d/c=3 e/f=4 e/g=5";
    clean(base, "d/b=2 d/c=3 d/x=1 n/f=4 n/g=5", "e/f=4 e/g=5 e/x=1 n/b=2 n/c=3", "n/b=2 n/c=3 n/f=4 n/g=5 n/x=1");
}

#[test]
fn a_conflict_in_a_directory_that_moved_is_reported_where_it_lies() {
    let came = merge("d/b=2 d/c=3 q=1", "d/b=2 d/c=3 d/q+=1", "e/b=2 e/c=3 q=9");
    assert_eq!((came.text.as_str(), came.conflict_text().as_str()), ("e/b=2 e/c=3 e/q+=9", ""));
    conflicts("d/b=2 q=1", "d/b=2 d/q=1", "e/b=2", "e/b=2 e/q=1", "moved and removed e/q q d/q");
    conflicts("d/b=2 q=1", "e/b=2", "d/b=2 d/q=1", "e/b=2 e/q=1", "moved and removed e/q q d/q");
    conflicts("d/b=2 q=1", "d/b=2 d/q+=1", "e/b=2", "e/b=2 e/q<+=1|1|->", "changed and removed e/q d/q");
}

#[test]
fn another_kind_that_one_side_made_of_it_follows_a_rename() {
    clean("a->x k=1", "a=2 k=1", "d/b->x k=1", "d/b=2 k=1");
    clean("a->x k=1", "d/b->x k=1", "a=2 k=1", "d/b=2 k=1");
    clean("a=1 k=1", "a->x k=1", "d/b=1 k=1", "d/b->x k=1");
}

#[test]
fn two_things_renamed_to_one_name_are_a_conflict() {
    conflicts("a=1 b=2", "c=1 b=2", "a=1 c=2", "c<1|-|2>", "moved onto c b");
}

#[test]
fn a_rename_onto_what_the_other_added_is_a_conflict() {
    conflicts("a=1", "c=1", "a=1 c=2", "c<1|-|2>", "moved onto c");
    conflicts("a=1", "a=1 c=2", "c=1", "c<2|-|1>", "moved onto c a");
}

#[test]
fn what_one_renamed_and_the_other_removed_stays_and_is_reported() {
    conflicts("a=1", "b=1", "", "b=1", "moved and removed b a");
    conflicts("a=1", "", "b=1", "b=1", "moved and removed b a");
}

#[test]
fn what_is_put_into_a_directory_that_moved_follows_it() {
    clean("d/a=1 d/b=2", "e/a=1 e/b=2", "d/a=1 d/b=2 d/c=3", "e/a=1 e/b=2 e/c=3");
    clean("d/a=1 d/b=2", "e/a=1 e/b=2", "d/a=9 d/b=2", "e/a=9 e/b=2");
    clean("d/a=1 d/b=2", "e/a=1 e/b=2", "d/b=2", "e/b=2");
    clean("d/a=1 d/b=2 q=5", "e/a=1 e/b=2 q=5", "d/a=1 d/b=2 d/q=5", "e/a=1 e/b=2 e/q=5");
    // Most of it went to one place; the directory is gone.
    clean("d/a=1 d/b=2 d/x=3", "e/a=1 e/b=2 f/x=3", "d/a=1 d/b=2 d/x=3 d/c=4", "e/a=1 e/b=2 e/c=4 f/x=3");
    // What was removed does not come back by the move, and is not in the way of something else there.
    clean("d/a=1 d/b=2 n/a=7", "d/b=2 e/a=7", "e/a=1 e/b=2 n/a=7", "e/a=7 e/b=2");
    // Half of it: the addition stays where it was put.
    clean("d/a=1 d/b=2", "e/a=1 f/b=2", "d/a=1 d/b=2 d/c=3", "d/c=3 e/a=1 f/b=2");
    // The directory is still there.
    clean("d/a=1 d/b=2 d/x=3", "e/a=1 e/b=2 d/x=3", "d/a=1 d/b=2 d/x=3 d/c=4", "d/c=4 d/x=3 e/a=1 e/b=2");
    // Deeper.
    clean("p/d/a=1 p/d/b=2", "q/d/a=1 q/d/b=2", "p/d/a=1 p/d/b=2 p/d/e/c=3", "q/d/a=1 q/d/b=2 q/d/e/c=3");
}

#[test]
fn what_is_led_back_to_where_the_other_side_has_it_stays_there() {
    // They put one thing into a directory that we emptied into the one where it was.
    let (base, one) = ("d/x=1 n/a=2 n/b=3", "d/a=2 d/b=3 d/x=1");
    let (other, merged) = ("d/y=4 n/a=2 n/b=3 n/x=1", "d/a=2 d/b=3 d/x=1 d/y=4");
    clean(base, one, other, merged);
    clean(base, other, one, merged);
}

#[test]
fn a_directory_under_another_name_elsewhere_does_not_lead_what_is_beside_it() {
    clean("d/e/x=1 q=2", "d/e/x=1 d/q=2", "f/g/x=1 q=2", "d/q=2 f/g/x=1");
    clean("d/e/x=1 q=2", "f/g/x=1 q=2", "d/e/x=1 d/q=2", "d/q=2 f/g/x=1");
    // Under the same name it does.
    clean("d/e/x=1 q=2", "d/e/x=1 d/q=2", "f/e/x=1 q=2", "f/e/x=1 f/q=2");
}

#[test]
fn a_rename_into_a_directory_that_moved_with_changes_follows_it() {
    let long = |end: &str| format!("{}{end}", "0123456789abcdef".repeat(12));
    let (before, after) = (long("before"), long("after"));
    let base = format!("a=5 e/x={before} e/y=6 m/k=1");
    let one = format!("a=5 m/k=1 m/x={after}");
    let other = format!("e/a=5 e/x={before} e/y=6 m/k=1");
    let merged = format!("m/a=5 m/k=1 m/x={after}");
    clean(&base, &one, &other, &merged);
    clean(&base, &other, &one, &merged);
}

#[test]
fn a_directory_comes_where_another_leads_what_the_other_side_added() {
    let (base, one) = ("d/e/x=1 d/y=2 f/k=4 n/z=3", "d/e/new=9 d/e/x=1 d/y=2 f/k=4 n/z=3");
    let (other, merged) = ("f/e/z=3 f/k=4 f/y=2", "f/e/new=9 f/e/z=3 f/k=4 f/y=2");
    clean(base, one, other, merged);
    clean(base, other, one, merged);
}

#[test]
fn a_change_follows_what_was_renamed_to_where_a_directory_was() {
    clean("a/x=1 f=2", "a=2", "a/x=1 f=9", "a=9");
    clean("a/x=1 f=2", "a/x=1 f=9", "a=2", "a=9");
    // And what was renamed to make room for one.
    clean("a=2 k=1", "a/x=3 f=2 k=1", "a=9 k=1", "a/x=3 f=9 k=1");
    clean("a=2 k=1", "a=9 k=1", "a/x=3 f=2 k=1", "a/x=3 f=9 k=1");
    conflicts("a/x=1 f=2", "a=2", "a/x=1", "a=2", "moved and removed a f");
}

#[test]
fn a_directory_leaves_before_something_else_takes_the_name_above_it() {
    clean("a/b/c/ k=1", "a=2 d/b/c/ k=1", "a/b/c/ k=1", "a=2 d/b/c/ k=1");
    clean("a/b/x=5 k=1", "a=2 d/b/x=5 k=1", "a/b/x=5 k=1", "a=2 d/b/x=5 k=1");
}

#[test]
fn a_rename_inside_a_directory_that_moved_follows_it() {
    clean("d/a=1 d/b=2", "e/a=1 e/b=2", "d/z=1 d/b=2", "e/b=2 e/z=1");
    // Deeper inside, by either side; all of it.
    clean("d/a=1 d/b=2", "e/a=1 e/b=2", "d/s/a=1 d/s/b=2", "e/s/a=1 e/s/b=2");
    clean("d/a=1 d/b=2", "d/s/a=1 d/s/b=2", "e/a=1 e/b=2", "e/s/a=1 e/s/b=2");
    // The directory came where one was already.
    clean("d/a=1 d/b=2 e/k=3", "e/a=1 e/b=2 e/k=3", "d/z=1 d/b=2 e/k=3", "e/b=2 e/k=3 e/z=1");
    clean("d/a=1 d/b=2 e/k=3", "d/z=1 d/b=2 e/k=3", "e/a=1 e/b=2 e/k=3", "e/b=2 e/k=3 e/z=1");
}

#[test]
fn a_directory_that_both_moved_is_in_both_places() {
    conflicts("d/a=1", "e/a=1", "f/a=1", "e/a=1 f/a=1", "moved twice e/a d/a f/a");
}

#[test]
fn an_addition_stays_where_its_name_is_taken() {
    clean("d/a=1 d/b=2 e/c=9", "e/a=1 e/b=2 e/c=9", "d/a=1 d/b=2 e/c=9 d/c=3", "d/c=3 e/a=1 e/b=2 e/c=9");
}

#[test]
fn a_file_against_a_directory_keeps_both_with_all_below() {
    conflicts("", "a=1", "a/b=2 a/c/d=3", "a<1|-|(b=2 c/d=3)>", "different kinds a");
    conflicts("", "a/b=2", "a=1", "a<(b=2)|-|1>", "different kinds a");
    conflicts("a/b=1 a/c=1", "a=x", "a/b=2 a/c=1", "a<x|(b=1 c=1)|(b=2 c=1)>", "different kinds a");
    conflicts("a=1", "a=2", "a/b=3", "a<2|1|(b=3)>", "different kinds a");
    conflicts("", "a->x", "a/", "a<->x|-|()>", "different kinds a");
}

#[test]
fn what_moved_below_a_clash_of_kinds_stays_where_the_other_side_has_it() {
    conflicts("q=1", "q=2 a=1", "a/q=1", "a<1|-|(q=1)> q=2", "different kinds a q");
    conflicts("q=1", "a/q=1", "q=2 a=1", "a<(q=1)|-|1> q=2", "different kinds a q");
    conflicts("q=1", "q=1 a=2", "a/q=1", "a<2|-|(q=1)>", "different kinds a");
    conflicts("q=1", "a/q=1", "q=1 a=2", "a<(q=1)|-|2>", "different kinds a");
}

#[test]
fn modes_are_merged_apart_from_contents() {
    clean("a=1", "a+=1", "a=2", "a+=2");
    clean("a+=1", "a=1", "a+=2", "a=2");
    clean("", "a=1", "a+=1", "a+=1");
    conflicts("a=1", "a+=1", "", "a<+=1|1|->", "changed and removed a");
}

#[test]
fn a_mode_that_what_took_the_place_cannot_have_is_a_conflict() {
    conflicts("a=1", "a->x", "a+=1", "a<->x|1|+=1>", "different kinds a");
    conflicts("a=1", "a+=1", "a->x", "a<+=1|1|->x>", "different kinds a");
    conflicts("a=1", "a|", "a+=1", "a<||1|+=1>", "different kinds a");
    // Nothing was done to the file that it was.
    clean("a+=1", "a->x", "a+=1", "a->x");
}

#[test]
fn devices_and_fifos_are_merged_as_wholes() {
    clean("a|", "a|", "", "");
    clean("a|", "b|", "a|", "b|");
    conflicts("a|", "a=1", "a=2", "a<1|||2>", "contents a");
}

#[test]
fn two_that_swapped_names_are_two_changes() {
    clean("a=1 b=2", "a=2 b=1", "a=1 b=2 c=3", "a=2 b=1 c=3");
}

#[test]
fn links_are_kept_right() {
    // What they linked is linked; what we wrote is seen through both names.
    let came = merge("a=1", "a=2", "a=1 b~a");
    assert_eq!(came.text, "a=2 b=2");
    assert_eq!(came.tree.stat("a").expect("stat").expect("there").links, 2);
    let came = merge("a=1", "a=1 b~a", "a=2");
    assert_eq!((came.text.as_str(), came.tree.stat("b").expect("stat").expect("there").links), ("a=2 b=2", 2));
    // What they wrote through all names is written once.
    let came = merge("a=1 b~a", "a=1 b~a c=1", "a=2 b~a");
    assert_eq!((came.text.as_str(), came.tree.stat("b").expect("stat").expect("there").links), ("a=2 b=2 c=1", 2));
    // What they took apart is apart.
    let came = merge("a=1 b~a", "a=1 b~a c=1", "a=1 b=2");
    assert_eq!((came.text.as_str(), came.tree.stat("a").expect("stat").expect("there").links), ("a=1 b=2 c=1", 1));
    // One name less, one name more.
    let came = merge("a=1 b~a", "a=1 b~a c~a", "a=1");
    assert_eq!((came.text.as_str(), came.tree.stat("a").expect("stat").expect("there").links), ("a=1 c=1", 2));
    // A name that they moved before the one that stayed, in the order of names.
    let came = merge("z=1 b~z", "z=1 b~z", "z=1 a~z");
    assert_eq!((came.text.as_str(), came.tree.stat("a").expect("stat").expect("there").links), ("a=1 z=1", 2));
    // Two files that we linked and they wrote apart.
    let came = merge("a=1 b=1", "a=1 b~a", "a=2 b=3");
    assert_eq!((came.text.as_str(), came.conflict_text().as_str()), ("a=2 b=3", ""));
}

#[test]
fn contents_are_merged_by_whoever_knows_how() {
    let store = Store::in_memory();
    let roots = ["a=1 b=1", "c=2 b=1", "a=3 b=1"].map(|text| tree(&store, text));
    let came = merged(&store, roots, &BothAfterEachOther).expect("merged");
    assert_eq!(came.conflict_text(), "changed and removed a");
    let roots = ["a=1 b=1", "a=2 b=1", "a+=3 b=1"].map(|text| tree(&store, text));
    let came = merged(&store, roots, &BothAfterEachOther).expect("merged");
    assert_eq!((came.text.as_str(), came.conflict_text().as_str()), ("a+=23 b=1", ""));
    let file = &came.report.files[0];
    assert_eq!((file.path.to_string().as_str(), file.strategy.as_str(), file.result.word()), ("a", "joined", "merged"));
    let stat = came.tree.stat("a").expect("stat").expect("there");
    assert_eq!(stat.mtime, kit::MERGE_TIME);
    assert_ne!(came.tree.stat("b").expect("stat").expect("there").mtime, kit::MERGE_TIME);
}

struct Takes(WholeSide);

impl MergeContents for Takes {
    fn merge(&self, _contest: &ContestedFile<'_>) -> Result<Verdict> {
        Ok(Verdict::Conflict { strategy: String::new() })
    }

    fn side_without_contents(&self, _path: &TreePath) -> Option<WholeSide> {
        Some(self.0)
    }
}

#[test]
fn a_rule_for_one_side_decides_between_a_change_and_a_removal() {
    let store = Store::in_memory();
    let check = |texts: [&str; 3], ours: &str, theirs: &str| {
        let roots = texts.map(|text| tree(&store, text));
        for (side, expected, result) in [(WholeSide::Ours, ours, "ours"), (WholeSide::Theirs, theirs, "theirs")] {
            let came = merged(&store, roots, &Takes(side)).expect("merged");
            assert_eq!((came.text.as_str(), came.conflict_text().as_str()), (expected, ""), "{texts:?}");
            let files = came.report.files.iter().map(|file| (file.path.to_string(), file.result.word()));
            assert_eq!(files.collect::<Vec<_>>(), [("a".to_owned(), result)], "{texts:?}");
        }
    };
    check(["a=1 b=1", "a=2 b=1", "b=1"], "a=2 b=1", "b=1");
    check(["a=1 b=1", "b=1", "a=2 b=1"], "b=1", "a=2 b=1");
    check(["a=1 b=1", "a=2 b=2", "b=1"], "a=2 b=2", "b=2");
}

struct Fails;

impl MergeContents for Fails {
    fn merge(&self, _contest: &ContestedFile<'_>) -> Result<Verdict> {
        Err(Error::Invalid { what: "contents", why: "they make no sense".to_owned() })
    }
}

#[test]
fn contents_that_cannot_be_merged_end_the_merge() {
    let store = Store::in_memory();
    let roots = ["a=1", "a=2", "a=3"].map(|text| tree(&store, text));
    let Err(error) = merged(&store, roots, &Fails) else { panic!("it fails") };
    assert!(matches!(error, Error::Invalid { .. }));
    let came = merged(&store, roots, &NoContents).expect("merged");
    assert_eq!(came.text, "a<2|1|3>");
}
