//! Frames and handshakes: what is encoded is decoded, and nothing else is.

use proptest::prelude::*;
use sumpter_types::*;
use sumpter_types::{Dtype, ReduceOp};
use sumpter_wire::*;

fn headers() -> impl Strategy<Value = Header> {
    let kinds = prop_oneof![
        Just((FrameKind::Begin, BEGIN_BYTES as u32)),
        Just((FrameKind::Begin, MAX_BEGIN_BYTES as u32)),
        (0..=MAX_ORDER_ENTRIES as u32).prop_map(|entries| {
            (FrameKind::Begin, MAX_BEGIN_BYTES as u32 + entries * ORDER_ENTRY_BYTES as u32)
        }),
        (1u32..u32::MAX).prop_map(|n| (FrameKind::Push, n)),
        (1u32..u32::MAX).prop_map(|n| (FrameKind::Result, n)),
        Just((FrameKind::Done, 0)),
        (0u32..65536).prop_map(|n| (FrameKind::Error, n)),
        (1u32..16384).prop_map(|n| (FrameKind::Group, n * 4)),
        (SNAPSHOT_BYTES as u32..).prop_map(|n| (FrameKind::Snapshot, n)),
        Just((FrameKind::Mirrored, 0)),
        (0..=EXACT_WORDS as u32).prop_map(|n| (FrameKind::Norm, 4 + 8 * n)),
        Just((FrameKind::Apply, 0)),
        Just((FrameKind::Apply, APPLY_BYTES as u32)),
    ];
    let tiers = prop::sample::select(vec![
        Tier::Root,
        Tier::Machine,
        Tier::Relay,
        Tier::Value,
        Tier::Slot2,
        Tier::Worker,
    ]);
    let fields = (kinds, tiers, any::<[u32; 5]>());
    fields.prop_map(|((kind, length), tier, [e, t, partition, r, chunk])| Header {
        kind,
        tier,
        epoch: Epoch(e),
        tensor: TensorId(t),
        partition,
        round: Round(r),
        chunk,
        length,
    })
}

fn specs() -> impl Strategy<Value = PartitionSpec> {
    let collective = prop::sample::select(vec![
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
    ]);
    let dtype = prop::sample::select(Dtype::ALL.to_vec());
    let op = prop::sample::select(ReduceOp::ALL.to_vec());
    let sizes = (1u32..1 << 20, 1u32..1 << 16);
    // What follows a spec: nothing, a route, or a codec.
    let route = prop::option::of(any::<(u32, u32, u32, bool)>());
    (sizes, any::<(u32, u32, bool)>(), collective, dtype, op, route).prop_map(
        |((elements, chunk), (group, root, deterministic), collective, dtype, op, route)| {
            let route = route.map(|(lane, group, rank, keeps)| Route {
                lane,
                group: GroupId(group),
                rank: Rank(rank),
                keeps,
            });
            let adds = collective == Collective::AllReduce && op == ReduceOp::Sum;
            let codes = adds && dtype.is_float() && !deterministic;
            PartitionSpec {
                bytes: elements * dtype.size() as u32,
                chunk_bytes: chunk * dtype.size() as u32,
                group: GroupId(group),
                root: Rank(root),
                collective,
                dtype,
                op,
                deterministic,
                variable: None,
                coding: (route.is_none() && codes).then_some(CodingSpec {
                    codec: CodecId(root),
                    elements: u64::from(elements) << 3,
                    block: u64::from(chunk) << 30,
                    carrier: (group % 2 == 0).then_some(Rank(group >> 1)),
                }),
                route,
            }
        },
    )
}

fn variables() -> impl Strategy<Value = VariableSpec> {
    let rule = prop::sample::select(Rule::ALL.to_vec());
    let mirrors = prop::sample::select(vec![[None, None], [Some(3), None], [Some(7), Some(1)]]);
    let staleness = any::<u32>().prop_map(Staleness);
    (rule, 1u32.., mirrors, any::<(u32, u16)>(), staleness).prop_map(
        |(rule, divisor, mirrors, (home, element), staleness)| VariableSpec {
            rule,
            divisor,
            mirrors: mirrors.map(|rank| rank.map(Rank)),
            home,
            offset: u32::from(element) * 8,
            staleness,
        },
    )
}

proptest! {
    #[test]
    fn a_header_survives_the_wire(header in headers()) {
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn a_header_survives_the_wire_with_checksums(header in headers(), payload: u32) {
        let bytes = header.encode_checked(payload);
        prop_assert_eq!(Header::decode_checked(&bytes), Ok((header, payload)));
    }

    #[test]
    fn damage_to_a_header_is_noticed(
        header in headers(),
        payload: u32,
        bits in prop::collection::btree_set(0usize..CHECKED_HEADER_BYTES * 8, 1..4),
    ) {
        let mut bytes = header.encode_checked(payload);
        bits.into_iter().for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
        prop_assert_eq!(Header::decode_checked(&bytes), Err(FrameError::CorruptHeader));
    }

    #[test]
    fn damage_to_a_payload_changes_its_checksum(
        bytes in prop::collection::vec(any::<u8>(), 1..3000),
        bits in prop::collection::btree_set(any::<usize>(), 1..4),
    ) {
        let mut damaged = bytes.clone();
        let bits = bits.into_iter().map(|bit| bit % (8 * bytes.len()));
        bits.for_each(|bit| damaged[bit / 8] ^= 1 << (bit % 8));
        prop_assert_eq!(damaged == bytes, checksum(&damaged) == checksum(&bytes));
    }

    #[test]
    fn a_spec_survives_the_wire_and_its_chunks_cover_it(spec in specs(), priority: i32, call: u32) {
        let call = CallNumber::from_field(call);
        let begin = Begin { spec, priority, call, update: None };
        prop_assert_eq!(Begin::decode(&begin.encode()), Ok(begin));
        let lens: Vec<u32> = (0..spec.chunks()).map(|i| spec.chunk_len(i)).collect();
        prop_assert_eq!(lens.iter().sum::<u32>(), spec.bytes);
        prop_assert!(lens.iter().all(|l| *l > 0 && l % spec.dtype.size() as u32 == 0));
        prop_assert_eq!(spec.chunk_len(spec.chunks()), 0);
    }

    #[test]
    fn an_update_survives_the_wire(
        spec in specs(), variable in variables(), dtype in 0usize..4, priority: i32,
        coefficients in prop::array::uniform10(0.1..1.0_f64),
        action in prop::sample::select(vec![Action::Apply, Action::Defer, Action::Skip]),
    ) {
        let dtype = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16][dtype];
        let (collective, variable) = (Collective::Update, Some(variable));
        let (bytes, chunk_bytes) = (spec.bytes * 8, spec.chunk_bytes * 8);
        let (route, coding) = (None, None);
        let spec = PartitionSpec { collective, dtype, bytes, chunk_bytes, variable, route, ..spec };
        let spec = PartitionSpec { coding, ..spec };
        let update = Update::from_coefficients(variable.unwrap().rule, coefficients).unwrap();
        let update = Some(Update { action, ..update });
        let begin = Begin { spec, priority, call: None, update };
        let mut bytes = begin.encode();
        prop_assert_eq!(Begin::decode(&bytes), Ok(begin));
        // Neither half of it is one alone, nor has an integer a rule.
        prop_assert!(Begin::decode(&bytes[..BEGIN_BYTES]).is_err());
        bytes[17] = Dtype::I32.code();
        prop_assert!(Begin::decode(&bytes).is_err());
        bytes[16] = Collective::AllReduce as u8;
        prop_assert!(Begin::decode(&bytes).is_err());
    }

    #[test]
    fn a_decision_survives_the_wire(
        rule in prop::sample::select(Rule::ALL.to_vec()),
        coefficients in prop::array::uniform10(0.1..1.0_f64),
        skips: bool,
    ) {
        let update = Update::from_coefficients(rule, coefficients).unwrap();
        let update = if skips { Update::skip(rule) } else { update };
        prop_assert_eq!(decode_apply(rule, &encode_apply(&update)), Ok(update));
        prop_assert!(decode_apply(rule, &[0; 8]).is_err());
        // A divisor of 0.
        prop_assert!(decode_apply(rule, &[0; APPLY_BYTES]).is_err());
    }

    #[test]
    fn a_norm_survives_the_wire(numbers in prop::collection::vec(any::<f64>(), 0..20)) {
        let mut squares = ExactSum::default();
        numbers.iter().for_each(|x| squares.add(*x));
        let bytes = encode_norm(&squares);
        prop_assert!(bytes.len() <= MAX_NORM_BYTES);
        prop_assert_eq!(decode_norm(&bytes), Ok(squares));
    }

    #[test]
    fn any_bytes_are_a_norm_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(squares) = decode_norm(&bytes) {
            prop_assert!(bytes.len() >= 4 && !squares.to_f64().is_sign_negative());
        }
        // Words that reach beyond the last one.
        let mut beyond = [0; 20];
        (beyond[0], beyond[4], beyond[12]) = (33, 1, 1);
        prop_assert!(decode_norm(&beyond).is_err());
        prop_assert!(decode_norm(&[0, 0, 4, 0]).is_err() && decode_norm(&[0, 1, 0, 0]).is_err());
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(
        bytes: [u8; HEADER_BYTES], spec: [u8; BEGIN_BYTES], update: [u8; UPDATE_BYTES],
    ) {
        if let Ok(header) = Header::decode(&bytes) {
            prop_assert_eq!(header.encode(), bytes);
        }
        if let Ok(decoded) = Begin::decode(&spec) {
            prop_assert_eq!(&decoded.encode()[..], spec);
        }
        let both = [&spec[..], &update].concat();
        if let Ok(decoded) = Begin::decode(&both) {
            prop_assert_eq!(&decoded.encode()[..], both);
        }
    }

    #[test]
    fn snapshots_survive_the_wire(
        stretch in (any::<u16>(), 1u32..1 << 20),
        clocks in prop::collection::btree_map(any::<u32>(), any::<[u32; 2]>(), 0..20),
        parts in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let (offset, len) = (stretch.0.into(), stretch.1);
        let clock = |(rank, [rounds, position]): (u32, [u32; 2])| {
            let rank = Rank(rank);
            Clock { rank, rounds, position }
        };
        let clocks: Vec<_> = clocks.into_iter().map(clock).collect();
        let snapshot = Snapshot { offset, len, clocks };
        let bytes = [snapshot.encode(), parts.clone()].concat();
        prop_assert_eq!(bytes.len(), Snapshot::payload_bytes(snapshot.clocks.len(), parts.len()));
        prop_assert_eq!(Snapshot::decode(&bytes), Ok((snapshot, &parts[..])));
    }

    #[test]
    fn any_bytes_are_a_snapshot_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..99)) {
        if let Ok((decoded, parts)) = Snapshot::decode(&bytes) {
            prop_assert_eq!([&decoded.encode(), parts].concat(), bytes);
        }
    }

    #[test]
    fn orders_survive_the_wire(
        entries in prop::collection::btree_map(1u32.., any::<[u32; 2]>(), 0..20),
    ) {
        let entry =
            |(end, [position, answer]): (u32, [u32; 2])| OrderEntry { end, position, answer };
        let order: Vec<_> = entries.into_iter().map(entry).collect();
        let bytes = encode_order(&order);
        prop_assert_eq!(decode_order(FrameKind::Done, &bytes), Ok(order.clone()));
        for cut in 1..bytes.len().min(ORDER_ENTRY_BYTES) {
            prop_assert!(decode_order(FrameKind::Done, &bytes[cut..]).is_err());
        }
        let twice = [&order[..], &order[..]].concat();
        let decoded = decode_order(FrameKind::Begin, &encode_order(&twice));
        prop_assert_eq!(decoded.is_ok(), order.is_empty());
    }

    #[test]
    fn any_bytes_are_an_order_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..99)) {
        if let Ok(order) = decode_order(FrameKind::Done, &bytes) {
            prop_assert_eq!(encode_order(&order), bytes);
        }
    }

    #[test]
    fn groups_survive_the_wire(ranks in prop::collection::btree_set(any::<u32>(), 1..50)) {
        let ranks: Vec<Rank> = ranks.into_iter().map(Rank).collect();
        prop_assert_eq!(decode_group(&encode_group(&ranks)), Ok(ranks));
    }

    #[test]
    fn a_handshake_in_pieces_ends_in_a_session(
        pieces in prop::collection::vec(1usize..50, 1..50), hello in hellos(),
    ) {
        let (outcome, refusal) = shake(hello, "a token of good length", &pieces);
        prop_assert_eq!(outcome, Ok(hello));
        prop_assert_eq!(refusal, Ok(true));
    }

    #[test]
    fn a_wrong_token_is_noticed_by_the_client_first(
        pieces in prop::collection::vec(1usize..50, 1..50), hello in hellos(),
    ) {
        let (_, client) = shake(hello, "another token, also long", &pieces);
        prop_assert_eq!(client, Err(HandshakeError::Token));
    }

    #[test]
    fn noise_never_passes_a_server(noise in prop::collection::vec(any::<u8>(), 1..400)) {
        let token = Token::new("a token of good length").unwrap();
        let mut server = ServerHandshake::new([7; 32]);
        let mut noise = &noise[..];
        while !noise.is_empty() {
            let space = server.space();
            let n = space.len().min(noise.len());
            space[..n].copy_from_slice(&noise[..n]);
            noise = &noise[n..];
            match server.filled(n, |_| Some(token.clone())) {
                Ok(None) => {}
                Ok(Some(hello)) => prop_assert!(false, "noise passed as {hello:?}"),
                Err(_) => break,
            }
        }
    }
}

fn hellos() -> impl Strategy<Value = Hello> {
    (any::<u64>(), 1u32..100, any::<u32>(), any::<u32>()).prop_map(|(job, size, epoch, lane)| {
        Hello {
            job: JobId(job),
            rank: Rank(size - 1),
            world_size: size,
            epoch: Epoch(epoch),
            lane,
            keeps: lane % 2 == 1,
            checksum: lane % 3 == 1,
            placed: lane % 5 < 2,
        }
    })
}

/// Runs both sides against each other, with pieces of the given sizes.
fn shake(
    hello: Hello,
    client_token: &str,
    pieces: &[usize],
) -> (Result<Hello, HandshakeError>, Result<bool, HandshakeError>) {
    let mut client = ClientHandshake::new(hello, [1; 32], Token::new(client_token).unwrap());
    let key = Token::new("a token of good length").unwrap();
    let mut server = ServerHandshake::new([2; 32]);
    let mut pieces = pieces.iter().copied().cycle();
    let mut seen = Err(HandshakeError::Broken("nothing came"));
    loop {
        let n = pieces.next().unwrap().min(client.pending().len()).min(server.space().len());
        let bytes = client.pending()[..n].to_vec();
        client.sent(n);
        server.space()[..n].copy_from_slice(&bytes);
        if n > 0 {
            match server.filled(n, |job| (job == hello.job).then(|| key.clone())) {
                Ok(None) => {}
                Ok(Some(hello)) => {
                    seen = Ok(hello);
                    server.accept(hello.placed);
                }
                Err(error) => return (Err(error), Ok(false)),
            }
        }
        let n = pieces.next().unwrap().min(server.pending().len()).min(client.space().len());
        let bytes = server.pending()[..n].to_vec();
        server.sent(n);
        client.space()[..n].copy_from_slice(&bytes);
        if n > 0 {
            match client.filled(n) {
                Ok(false) => {}
                outcome => {
                    let would = seen.as_ref().is_ok_and(|hello| hello.placed);
                    assert_eq!(client.places(), would && outcome == Ok(true));
                    return (seen, outcome);
                }
            }
        }
    }
}

#[test]
fn a_recorded_proof_is_worthless_against_another_nonce() {
    let token = Token::new("a token of good length").unwrap();
    let hello = Hello {
        job: JobId(1),
        rank: Rank(0),
        world_size: 1,
        epoch: Epoch(1),
        lane: 0,
        keeps: false,
        checksum: false,
        placed: false,
    };
    let mut client = ClientHandshake::new(hello, [1; 32], token.clone());
    let said = client.pending().to_vec();
    let run = |nonce: u8, proof: Option<&[u8]>, client: Option<&mut ClientHandshake>| {
        let mut server = ServerHandshake::new([nonce; 32]);
        server.space().copy_from_slice(&said);
        server.filled(said.len(), |_| Some(token.clone())).unwrap();
        let proof = match (proof, client) {
            (Some(proof), _) => proof.to_vec(),
            (None, Some(client)) => {
                client.sent(said.len());
                let reply = server.pending().to_vec();
                for part in [&reply[..4], &reply[4..]] {
                    client.space().copy_from_slice(part);
                    client.filled(part.len()).unwrap();
                }
                client.pending().to_vec()
            }
            (None, None) => unreachable!(),
        };
        server.space().copy_from_slice(&proof);
        (server.filled(proof.len(), |_| None), proof)
    };
    let (honest, proof) = run(2, None, Some(&mut client));
    assert_eq!(honest, Ok(Some(hello)));
    assert_eq!(run(3, Some(&proof), None).0, Err(HandshakeError::Token));
}

#[test]
fn another_version_is_refused_with_both_versions_named() {
    let token = Token::new("a token of good length").unwrap();
    let hello = Hello {
        job: JobId(1),
        rank: Rank(0),
        world_size: 1,
        epoch: Epoch(1),
        lane: 0,
        keeps: false,
        checksum: false,
        placed: false,
    };
    let client = ClientHandshake::new(hello, [1; 32], token.clone());
    let mut said = client.pending().to_vec();
    said[8] = 9;
    let mut server = ServerHandshake::new([2; 32]);
    server.space().copy_from_slice(&said);
    let expected = HandshakeError::Version { theirs: 9, ours: PROTOCOL_VERSION };
    assert_eq!(server.filled(said.len(), |_| Some(token)), Err(expected));
    let text = String::from_utf8_lossy(server.pending()).into_owned();
    let both = format!("speaks version {PROTOCOL_VERSION}, the client 9");
    assert!(text.contains(&both), "{text}");
}

#[test]
fn a_run_that_is_not_known_is_refused_before_anything_is_proved() {
    let token = Token::new("a token of good length").unwrap();
    let hello = Hello {
        job: JobId(1),
        rank: Rank(0),
        world_size: 1,
        epoch: Epoch(1),
        lane: 0,
        keeps: false,
        checksum: false,
        placed: false,
    };
    let client = ClientHandshake::new(hello, [1; 32], token);
    let mut server = ServerHandshake::new([2; 32]);
    server.space().copy_from_slice(client.pending());
    let asked = |job| {
        assert_eq!(job, JobId(1));
        None
    };
    let said = client.pending().len();
    assert_eq!(server.filled(said, asked), Err(HandshakeError::UnknownJob));
    let reply = String::from_utf8_lossy(server.pending()).into_owned();
    assert!(reply.ends_with("the job is not known here (yet)"), "{reply}");
}
