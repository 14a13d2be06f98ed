//! What an object says of others, which only looking at them can tell.

use amalgam_engine::object::{
    CUT_BITS, Content, Directories, DirectoryItem, DirectoryLink, DirectoryRef, Entry, Extra, ITEMS_MAX, ITEMS_MIN,
    LinkMember, Links, Node, Root, RopeLink, Ropes, Segment, SegmentSource, Sequence, SequenceNode, Snapshot,
    StateItem, StateLink, States,
};
use amalgam_engine::{
    Bare, ChunkId, DirectoryId, Error, InvalidName, LinkGroup, LinksId, Malformed, Name, ObjectId, ObjectKind, Result,
    RootId, RopeId, Store, Time, TreePath, WriteSession,
};

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

pub fn item(text: &str, entry: Entry) -> DirectoryItem {
    DirectoryItem { name: name(text), entry }
}

pub fn fifo() -> Entry {
    Entry::new(Node::Fifo, 0o600, Time(5))
}

pub type Leaf = SequenceNode<Directories>;

fn link(node: &Leaf) -> DirectoryLink {
    let (first, linked) = match node {
        SequenceNode::Leaf(items) => (&items[0].name, items.iter().map(|item| item.entry.linked()).sum()),
        SequenceNode::Inner { links, .. } => (&links[0].first, links.iter().map(|link| link.linked).sum()),
    };
    DirectoryLink {
        first: first.clone(),
        id: DirectoryId::of(&node.encode()),
        bare: node.bare(),
        count: node.count(),
        linked,
    }
}

pub fn reference(node: &Leaf) -> DirectoryRef {
    let link = link(node);
    DirectoryRef { id: link.id, bare: link.bare, linked: link.linked }
}

pub fn admit<S: Sequence>(session: &WriteSession, node: &SequenceNode<S>) -> Result<ObjectId> {
    session.admit(S::KIND, node.encode())
}

fn refusal(result: Result<ObjectId>) -> Malformed {
    match result {
        Err(Error::Refused { source, .. }) => source,
        other => panic!("not refused: {other:?}"),
    }
}

/// Cuts items into leaves as the format says.
fn leaves<S: Sequence>(items: impl IntoIterator<Item = S::Item>) -> Vec<SequenceNode<S>> {
    let mut leaves = Vec::new();
    let mut open = Vec::new();
    for item in items {
        let ends = S::item_hash(&item).trailing_zeros() >= CUT_BITS;
        open.push(item);
        if open.len() >= ITEMS_MAX || (open.len() >= ITEMS_MIN && ends) {
            leaves.push(SequenceNode::Leaf(std::mem::take(&mut open)));
        }
    }
    if !open.is_empty() {
        leaves.push(SequenceNode::Leaf(open));
    }
    leaves
}

/// Names that end no node by themselves.
pub fn quiet_names(count: usize) -> Vec<String> {
    let quiet = |text: &String| Directories::item_hash(&item(text, fifo())).trailing_zeros() < CUT_BITS;
    (0..).map(|at| format!("{at:06}")).filter(quiet).take(count).collect()
}

/// Three admitted leaves of a directory, and the links to them.
fn three(session: &WriteSession) -> (Vec<Leaf>, Vec<DirectoryLink>) {
    let items = (0..).map(|at| item(&format!("{at:04}"), fifo()));
    let mut leaves: Vec<Leaf> = leaves::<Directories>(items.take(400));
    leaves.truncate(3);
    for leaf in &leaves {
        admit(session, leaf).expect("a valid leaf");
    }
    let links = leaves.iter().map(link).collect();
    (leaves, links)
}

fn inner(links: Vec<DirectoryLink>) -> Leaf {
    SequenceNode::Inner { level: 1, links }
}

#[test]
fn links_describe_their_children() {
    let session = Store::in_memory().session();
    let (_, links) = three(&session);
    admit(&session, &inner(links.clone())).expect("the truth is admitted");
    let lie = |change: fn(&mut DirectoryLink)| {
        let mut links = links.clone();
        change(&mut links[1]);
        refusal(admit(&session, &inner(links)))
    };
    assert_eq!(lie(|link| link.count += 1), Malformed::Link, "a count");
    assert_eq!(lie(|link| link.linked += 1), Malformed::Link, "the hard links");
    assert_eq!(lie(|link| link.bare = Bare::of(b"else")), Malformed::Link, "bare");
    let first =
        |link: &mut DirectoryLink| link.first = name(&format!("{}x", String::from_utf8_lossy(link.first.as_bytes())));
    assert_eq!(lie(first), Malformed::Link, "the first name");
    let two_up = SequenceNode::<Directories>::Inner { level: 2, links: links.clone() };
    assert_eq!(refusal(admit(&session, &two_up)), Malformed::Link, "the level");
    let absent = DirectoryId::of(b"absent");
    let mut broken = links;
    broken[1].id = absent;
    assert_eq!(refusal(admit(&session, &inner(broken))), Malformed::Absent { id: absent.object() });
}

#[test]
fn nodes_meet_where_they_are_cut() {
    let session = Store::in_memory().session();
    let (leaves, links) = three(&session);
    let SequenceNode::Leaf(items) = &leaves[1] else { panic!("a leaf") };

    let short: Leaf = SequenceNode::Leaf(items[..items.len() - 1].to_vec());
    admit(&session, &short).expect("a valid last leaf");
    let early = inner(vec![links[0].clone(), link(&short), links[2].clone()]);
    assert_eq!(refusal(admit(&session, &early)), Malformed::Boundary);
    admit(&session, &inner(vec![links[0].clone(), link(&short)])).expect("the last one may end anywhere");

    // The last leaf of a node that is not the last of its level must end at a cut too.
    let open = inner(vec![links[0].clone(), link(&short)]);
    let last = inner(vec![links[2].clone()]);
    admit(&session, &last).expect("a valid last node");
    let above = SequenceNode::<Directories>::Inner { level: 2, links: vec![link(&open), link(&last)] };
    assert_eq!(refusal(admit(&session, &above)), Malformed::Boundary);

    let mut overlapping = items.clone();
    let last_item = overlapping.last_mut().expect("items");
    last_item.name = (0..)
        .map(|at| name(&format!("9{at:05}")))
        .find(|name| {
            let item = DirectoryItem { name: name.clone(), entry: fifo() };
            Directories::item_hash(&item).trailing_zeros() >= CUT_BITS
        })
        .expect("one in 32 ends a node");
    let overlapping: Leaf = SequenceNode::Leaf(overlapping);
    admit(&session, &overlapping).expect("a valid leaf");
    let unsorted = inner(vec![links[0].clone(), link(&overlapping), links[2].clone()]);
    assert_eq!(refusal(admit(&session, &unsorted)), Malformed::Order);
}

fn chunk(session: &WriteSession, bytes: &[u8]) -> Segment {
    let id = session.admit(ObjectKind::Chunk, bytes.to_vec()).expect("a chunk");
    Segment { length: bytes.len() as u64, source: SegmentSource::Chunk(ChunkId::from_bytes(id.hash)) }
}

pub fn rope_link(node: &SequenceNode<Ropes>) -> RopeLink {
    RopeLink { id: RopeId::of(&node.encode()), count: node.count(), length: node.length() }
}

#[test]
fn ropes_are_as_long_as_they_say() {
    let session = Store::in_memory().session();
    let segment = chunk(&session, &[1; 40_000]);
    let longer = Segment { length: 40_001, ..segment };
    assert_eq!(refusal(admit(&session, &SequenceNode::<Ropes>::Leaf(vec![segment, longer]))), Malformed::Link);
    let rope = SequenceNode::<Ropes>::Leaf(vec![segment, segment]);
    admit(&session, &rope).expect("the truth is admitted");
    let file = |size: u64, rope: &SequenceNode<Ropes>| {
        let content = Content::Rope(RopeId::of(&rope.encode()));
        SequenceNode::<Directories>::Leaf(vec![item("file", Entry::new(Node::File { size, content }, 0, Time::EPOCH))])
    };
    admit(&session, &file(80_000, &rope)).expect("the truth is admitted");
    assert_eq!(refusal(admit(&session, &file(80_001, &rope))), Malformed::Link);
    assert_eq!(refusal(admit(&session, &file(79_999, &rope))), Malformed::Link);

    let small = |size: u64| {
        let SegmentSource::Chunk(id) = segment.source else { panic!("a chunk") };
        SequenceNode::<Directories>::Leaf(vec![item(
            "file",
            Entry::new(Node::File { size, content: Content::Chunk(id) }, 0, Time::EPOCH),
        )])
    };
    admit(&session, &small(40_000)).expect("the truth is admitted");
    assert_eq!(refusal(admit(&session, &small(39_999))), Malformed::Link);

    let alone = SequenceNode::<Ropes>::Leaf(vec![Segment { length: 70_000, source: SegmentSource::Hole }]);
    admit(&session, &alone).expect("a valid node");
    assert_eq!(refusal(admit(&session, &file(70_000, &alone))), Malformed::TooFew, "zeros throughout are a hole");
}

#[test]
fn holes_do_not_touch_across_nodes() {
    let session = Store::in_memory().session();
    let segment = chunk(&session, &[1; 40_000]);
    let ends = |length: &u64| {
        Ropes::item_hash(&Segment { length: *length, source: SegmentSource::Hole }).trailing_zeros() >= CUT_BITS
    };
    let hole = |length| Segment { length, source: SegmentSource::Hole };
    let ending = hole((65_536..).find(ends).expect("one in 32 ends a node"));
    let before = SequenceNode::<Ropes>::Leaf([vec![segment; 7], vec![ending]].concat());
    let after = SequenceNode::<Ropes>::Leaf(vec![hole(70_000), segment]);
    let apart = SequenceNode::<Ropes>::Leaf(vec![segment, hole(70_000)]);
    for node in [&before, &after, &apart] {
        admit(&session, node).expect("a valid node");
    }
    let inner = |last| SequenceNode::<Ropes>::Inner { level: 1, links: vec![rope_link(&before), rope_link(last)] };
    admit(&session, &inner(&apart)).expect("the truth is admitted");
    assert_eq!(refusal(admit(&session, &inner(&after))), Malformed::Rule("two holes side by side"));
    let mut lying = rope_link(&apart);
    lying.length += 1;
    let lying = SequenceNode::<Ropes>::Inner { level: 1, links: vec![rope_link(&before), lying] };
    assert_eq!(refusal(admit(&session, &lying)), Malformed::Link);
}

pub fn root(directory: Option<DirectoryRef>) -> Root {
    Root { directory: Entry::new(Node::Directory(directory), 0o755, Time::EPOCH), links: None, state: None }
}

fn admit_root(session: &WriteSession, root: &Root) -> Result<ObjectId> {
    session.admit(ObjectKind::Root, root.encode())
}

#[test]
fn roots_describe_their_directories() {
    let session = Store::in_memory().session();
    let (leaves, links) = three(&session);
    let truth = reference(&leaves[0]);
    admit_root(&session, &root(Some(truth))).expect("the truth is admitted");
    admit_root(&session, &root(None)).expect("an empty tree is admitted");
    let lying = root(Some(DirectoryRef { bare: Bare::of(b"else"), ..truth }));
    assert_eq!(refusal(admit_root(&session, &lying)), Malformed::Link);

    let single = inner(vec![links[0].clone()]);
    admit(&session, &single).expect("a valid node, though not at the top");
    assert_eq!(refusal(admit_root(&session, &root(Some(reference(&single))))), Malformed::TooFew);

    let item = StateItem::new("key", "1").expect("a value");
    let values = SequenceNode::<States>::Leaf(vec![item.clone()]);
    admit(&session, &values).expect("a valid leaf");
    let id = amalgam_engine::StateId::of(&values.encode());
    let above = SequenceNode::<States>::Inner { level: 1, links: vec![StateLink { first: item.key, id, count: 1 }] };
    admit(&session, &above).expect("a valid node, though not at the top");
    let with_state =
        |node: &SequenceNode<States>| Root { state: Some(amalgam_engine::StateId::of(&node.encode())), ..root(None) };
    admit_root(&session, &with_state(&values)).expect("the truth is admitted");
    assert_eq!(refusal(admit_root(&session, &with_state(&above))), Malformed::TooFew);
}

#[test]
fn conflicts_describe_their_terms() {
    use amalgam_engine::object::{Conflict, Settled};
    let session = Store::in_memory().session();
    let (leaves, _) = three(&session);
    let term = |bare| {
        let contents = DirectoryRef { bare, ..reference(&leaves[0]) };
        Some(Entry::new(Node::Directory(Some(contents)), 0o755, Time::EPOCH))
    };
    let conflict = |bare| match Conflict::settle(vec![term(bare), Some(fifo()), None]).expect("terms") {
        Settled::Conflicted(conflict) => SequenceNode::<Directories>::Leaf(vec![item(
            "c",
            Entry::new(Node::Conflict(conflict.into()), 0, Time::EPOCH),
        )]),
        Settled::Resolved(_) => panic!("they differ"),
    };
    admit(&session, &conflict(reference(&leaves[0]).bare)).expect("the truth is admitted");
    assert_eq!(refusal(admit(&session, &conflict(Bare::of(b"else")))), Malformed::Link);
}

#[test]
fn hard_links_are_where_they_are_listed() {
    let group = LinkGroup::first_seen_at(b"a", 0);
    let other = LinkGroup::first_seen_at(b"b", 0);
    let linked = |group| {
        let mut entry = fifo();
        entry.extra = Some(Box::new(Extra { link: Some(group), ..Extra::default() }));
        entry
    };
    let attempt = |entries: &[(&str, LinkGroup)], members: &[(LinkGroup, &str)]| {
        let session = Store::in_memory().session();
        let node: Leaf = SequenceNode::Leaf(entries.iter().map(|(text, group)| item(text, linked(*group))).collect());
        admit(&session, &node).expect("a valid directory");
        let mut list: Vec<_> = members
            .iter()
            .map(|(group, path)| LinkMember { group: *group, path: TreePath::new(path).expect("a path") })
            .collect();
        list.sort();
        let list = SequenceNode::<Links>::Leaf(list);
        admit(&session, &list).expect("a valid list");
        let links = Some(LinksId::of(&list.encode()));
        admit_root(&session, &Root { links, ..root(Some(reference(&node))) })
    };
    attempt(&[("a", group), ("b", group)], &[(group, "a"), (group, "b")]).expect("the truth is admitted");
    let refused = |entries: &[(&str, LinkGroup)], members: &[(LinkGroup, &str)]| refusal(attempt(entries, members));
    assert_eq!(refused(&[("a", group), ("b", group)], &[(group, "a")]), Malformed::Link, "one is missing");
    assert_eq!(refused(&[("a", group), ("b", group)], &[(group, "a"), (group, "c")]), Malformed::Link, "not there");
    assert_eq!(
        refused(&[("a", group), ("b", group)], &[(group, "a"), (group, "a/b")]),
        Malformed::Link,
        "no directory"
    );
    assert_eq!(refused(&[("a", group), ("b", other)], &[(group, "a"), (group, "b")]), Malformed::Link, "another group");
    let single = Malformed::Rule("a hard link with a single name");
    assert_eq!(refused(&[("a", group), ("b", other)], &[(group, "a"), (other, "b")]), single);
    let lying = [("a", group), ("b", group), ("c", other)];
    assert_eq!(refused(&lying, &[(group, "a"), (group, "b"), (other, "c")]), single);
}

#[test]
fn names_of_one_file_that_differ_are_refused() {
    let group = LinkGroup::first_seen_at(b"a", 0);
    let linked = |entry: Entry| entry.with_extra(|extra| extra.link = Some(group));
    let attempt = |other: Entry| {
        let session = Store::in_memory().session();
        let node: Leaf = SequenceNode::Leaf(vec![item("a", linked(fifo())), item("b", linked(other))]);
        admit(&session, &node).expect("a valid directory");
        let member = |path: &str| LinkMember { group, path: TreePath::new(path).expect("a path") };
        let list = SequenceNode::<Links>::Leaf(vec![member("a"), member("b")]);
        admit(&session, &list).expect("a valid list");
        let links = Some(LinksId::of(&list.encode()));
        admit_root(&session, &Root { links, ..root(Some(reference(&node))) })
    };
    attempt(fifo()).expect("equal names are admitted");
    for other in [Entry::new(Node::Socket, 0o600, Time(5)), Entry { mode: 0o666, ..fifo() }] {
        assert_eq!(refusal(attempt(other)), Malformed::Rule("names of one file that differ"));
    }
}

#[test]
fn snapshots_have_their_root() {
    let session = Store::in_memory().session();
    let snapshot = |root: RootId| Snapshot {
        root,
        parents: vec![amalgam_engine::SnapshotId::of(b"thinned out")],
        author: "eve".to_owned(),
        time: Time::EPOCH,
        message: String::new(),
        metadata: Default::default(),
        generation: 1,
    };
    let absent = RootId::of(b"absent");
    let refused = refusal(session.admit(ObjectKind::Snapshot, snapshot(absent).encode()));
    assert_eq!(refused, Malformed::Absent { id: absent.object() });
    let root = admit_root(&session, &root(None)).expect("an empty tree");
    session
        .admit(ObjectKind::Snapshot, snapshot(RootId::from_bytes(root.hash)).encode())
        .expect("the truth is admitted");
}

#[test]
fn no_tree_is_deeper_than_a_path() {
    let session = Store::in_memory().session();
    let mut node: Leaf = SequenceNode::Leaf(vec![item("d", fifo())]);
    for _ in 1..2_048 {
        admit(&session, &node).expect("not too deep yet");
        node = SequenceNode::Leaf(vec![item(
            "d",
            Entry::new(Node::Directory(Some(reference(&node))), 0o755, Time::EPOCH),
        )]);
    }
    admit(&session, &node).expect("2,048 names are allowed");
    admit_root(&session, &root(Some(reference(&node)))).expect("2,048 names are allowed");
    let deeper: Leaf =
        SequenceNode::Leaf(vec![item("d", Entry::new(Node::Directory(Some(reference(&node))), 0o755, Time::EPOCH))]);
    assert_eq!(refusal(admit(&session, &deeper)), Malformed::Name(InvalidName::TooDeep));
}

#[test]
fn quiet_names_fill_a_node() {
    let session = Store::in_memory().session();
    let items: Vec<_> = quiet_names(ITEMS_MAX + 1).iter().map(|text| item(text, fifo())).collect();
    assert_eq!(leaves::<Directories>(items.clone()).len(), 2);
    admit(&session, &SequenceNode::<Directories>::Leaf(items[..ITEMS_MAX].to_vec())).expect("a full node");
}
