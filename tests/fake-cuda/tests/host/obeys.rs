//! The plan decides which kernels run, and the launch obeys.

use msa_core::plan::{AppendPlan, DecodeBlocks, IndexKernel, Plan, SelectKernel};
use msa_tests::trial::Trial;

use crate::child::{Driver, test_name};
use crate::fake::take_log;
use crate::work::{APPEND, DECODE, INDEX, SELECT, STEP, Work, device};

/// The kernels that a run of `work` launches, in order.
fn launched(work: &Work) -> Vec<String> {
    take_log();
    work.run(0);
    let log = take_log();
    let kernels = log.iter().filter(|line| line.starts_with("cuLaunchKernelEx"));
    let kernels =
        kernels.filter_map(|line| line.split_once("kernel=")?.1.split(' ').next().map(str::to_owned));
    kernels.collect()
}

#[test]
fn kernels_are_those_that_the_plan_names() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        for (line, want) in [
            (INDEX, "index_score_n2"),
            ("index_score(len=[1x300],ik=nvfp4,iq=e4m3)", "index_score_n1_pair"),
            ("index_score(len=[1x49280],ik=fp8,iq=e4m3)", "index_score_n1_few"),
            ("index_score(len=[1x1048704],ik=fp8,iq=e4m3)", "index_score_n1"),
            ("index_score(len=[1x49152],ik=fp8,iq=e4m3)", "index_score_n1_quad"),
            ("index_score(len=[1x122880],ik=nvfp4,iq=e4m3)", "index_score_n1_pair"),
            ("index_score(len=[1x122881],ik=nvfp4,iq=e4m3)", "index_score_n1"),
            ("index_score(len=[5x300],ik=nvfp4,iq=e4m3)", "index_score_n4"),
            (SELECT, "select_by_four"),
            ("select(len=[1x140000])", "select_by_eight"),
            ("select(len=[1x600000])", "select_by_sixteen"),
            ("select(len=[1x2097153])", "select_by_cluster"),
            ("select(len=[1x140000],k=33)", "select_medium"),
            ("select(len=[1x600000],k=33)", "select_large"),
            ("select(len=[40x3000])", "select_by_warp"),
            (DECODE, "sparse_decode_few"),
            (APPEND, "append_once"),
        ] {
            assert_eq!(launched(&Work::new(&device, line)), [want], "{line}");
        }
        let step = launched(&Work::new(&device, STEP));
        let want = ["append_once", "index_score_n2", "sparse_decode_few"];
        assert_eq!(step, want);
        // Where a team of warps suits the lists, attention selects them, up to 1,024 blocks a row.
        let short = launched(&Work::new(&device, "step(len=[1x131072],kv=fp8,ik=fp8)"));
        assert_eq!(short, ["index_score_n1_few", "sparse_decode_lone_selects"]);
        let long = launched(&Work::new(&device, "step(len=[1x131073],kv=fp8,ik=fp8)"));
        assert_eq!(long, ["index_score_n1_few", "select_by_eight", "sparse_decode_lone"]);
    });
}

/// The launches of a run: kernel, blocks of a cluster, and whether they are balanced over SMs.
fn placed(work: &Work) -> Vec<(String, u32, bool)> {
    take_log();
    work.run(0);
    let log = take_log();
    let launches = log.iter().filter(|line| line.starts_with("cuLaunchKernelEx"));
    let launches = launches.map(|line| {
        let value = |name: &str| line.split_once(name).expect(name).1.split(' ').next().expect(name);
        let balanced = value(" policy=") == "CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING";
        (value("kernel=").to_owned(), value(" cluster=").parse().expect("a number"), balanced)
    });
    launches.collect()
}

/// Blocks of a cluster of sparse decode are balanced over SMs where that was measured to be faster, and nothing else is.
#[test]
fn clusters_of_four_and_eight_are_balanced() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let mut clusters = Vec::new();
        for (requests, parts) in [(1, 16), (2, 8), (8, 4), (32, 2), (128, 1)] {
            let lengths = vec!["1x4096"; requests].join(",");
            let line = format!("sparse_decode(len=[{lengths}],kv=fp8,q=e4m3,splits={parts})");
            for (kernel, cluster, balanced) in placed(&Work::new(&device, &line)) {
                assert_eq!(balanced, [4, 8].contains(&cluster), "{line}: {kernel} in clusters of {cluster}");
                clusters.push(cluster);
            }
        }
        assert!([1, 2, 4, 8, 16].iter().all(|size| clusters.contains(size)), "{clusters:?}");
        let select = placed(&Work::new(&device, "select(len=[1x2097153])"));
        assert!(select.iter().any(|(_, cluster, _)| *cluster > 1), "{select:?}");
        assert!(select.iter().all(|(.., balanced)| !balanced), "{select:?}");
    });
}

/// A plan with another kernel than the planner's is another plan, and is refused: the launch has nothing to say.
#[test]
fn a_plan_that_names_no_kernel_or_another_one_is_refused() {
    Driver::of("9.0").run(&test_name!(), || {
        type Change = fn(&mut Plan);
        let changes: [(&str, Change, &str); 8] = [
            (INDEX, |p| p.index_kernel = IndexKernel::None, "index_kernel: none for index_score on sm90a"),
            (INDEX, |p| p.index_kernel = IndexKernel::Eight, "the planner makes another plan: index_kernel"),
            (SELECT, |p| p.select_kernel = SelectKernel::None, "select_kernel: none cannot select"),
            (
                SELECT,
                |p| p.select_kernel = SelectKernel::Small,
                "the planner makes another plan: select_kernel",
            ),
            (DECODE, |p| p.decode_blocks = DecodeBlocks::None, "decode_blocks: none for"),
            (APPEND, |p| p.append = AppendPlan::default(), "append.many_rows: 0"),
            (APPEND, |p| p.append.most_passes = 9, "the planner makes another plan: append"),
            (STEP, |p| p.index_kernel = IndexKernel::None, "index_kernel: none for step on sm90a"),
        ];
        let device = device();
        for (line, change, want) in changes {
            let mut plan = Trial::new(&device, line.parse().unwrap()).unwrap().plan;
            change(&mut plan);
            plan.hash = plan.computed_hash();
            let error = device.prepare(&plan).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(want), "{line}: {error}");
        }
    });
}
